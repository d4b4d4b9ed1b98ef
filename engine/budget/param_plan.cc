#include "engine/budget/param_plan.h"

#include <algorithm>
#include <utility>

#include "aio/check.h"
#include "engine/budget/base_form.h"
#include "engine/budget/raised_note.h"
#include "engine/budget/stripe_plan.h"

namespace sluice::engine {
namespace {

constexpr std::int64_t kMostPrefetchUnits = 64;
// Slots in addition to those being copied into, because the host runs ahead of the GPU: one in use,
// and one just used.
constexpr int kSlotsBeside = 2;

std::uint64_t not_negative(std::int64_t elements) {
  return static_cast<std::uint64_t>(std::max<std::int64_t>(elements, 0));
}

std::string below(const std::string& key, std::int64_t given, const std::string& who,
                  std::uint64_t needed) {
  return "zero_optimization." + key + " " + std::to_string(given) + " is below what " + who + " (" +
         std::to_string(needed) + " elements): raised to that";
}

int at_most(std::uint64_t count, int most) {
  return static_cast<int>(std::min<std::uint64_t>(count, static_cast<std::uint64_t>(most)));
}

int units_ahead(const UnitSizes& sizes, const FetchRequest& request,
                std::vector<std::string>& raised) {
  if (request.prefetch_units > 0)
    return static_cast<int>(std::min(request.prefetch_units, kMostPrefetchUnits));
  const std::uint64_t bucket = not_negative(request.prefetch_bucket_elements);
  if (bucket < sizes.block_elements) {
    raised.push_back(below("stage3_prefetch_bucket_size", request.prefetch_bucket_elements,
                           "one block needs", sizes.block_elements));
    return 1;
  }
  const int most = static_cast<int>(std::min<std::int64_t>(sizes.blocks, kMostPrefetchUnits));
  return at_most(bucket / sizes.block_elements, most);
}

// Slots that max_live_elements allows for blocks.
int live_blocks(const UnitSizes& sizes, const FetchRequest& request,
                std::vector<std::string>& raised) {
  const int least = least_block_slots(sizes.blocks);
  const std::uint64_t kept = sizes.end_elements;
  const std::uint64_t needed = kept + static_cast<std::uint64_t>(least) * sizes.block_elements;
  const std::uint64_t live = not_negative(request.max_live_elements);
  if (live < needed) {
    raised.push_back(below("stage3_max_live_parameters", request.max_live_elements,
                           "the embedding, the head, one block and its successor need", needed));
    return least;
  }
  return at_most((live - kept) / sizes.block_elements, sizes.blocks);
}

// Between a block's forward and backward come all later blocks, twice, and the head with the token
// embedding.
int reused_blocks(const UnitSizes& sizes, const FetchRequest& request) {
  const std::uint64_t distance = not_negative(request.max_reuse_distance_elements);
  const std::uint64_t of_last = sizes.end_elements;
  if (distance < of_last) return 0;
  return at_most((distance - of_last) / sizes.block_elements / 2 + 1, sizes.blocks);
}

void check_sizes(const UnitSizes& sizes) {
  SLUICE_CHECK(sizes.blocks > 0 && sizes.block_elements > 0, "a model has blocks with parameters");
}

}  // namespace

int least_block_slots(int blocks) { return std::min(blocks, 2); }

void lower_block_slots(FetchLimits& limits, int blocks, int most) {
  limits.block_slots =
      std::max(least_block_slots(blocks), std::min({limits.block_slots, blocks, most}));
  limits.prefetch_units = std::clamp(limits.prefetch_units, 1, std::max(limits.block_slots - 1, 1));
}

FetchLimits fetch_limits(const UnitSizes& sizes, const FetchRequest& request) {
  check_sizes(sizes);
  FetchLimits limits;
  limits.prefetch_units = units_ahead(sizes, request, limits.raised);
  const int for_fetching = limits.prefetch_units + kSlotsBeside;
  const int live = live_blocks(sizes, request, limits.raised);
  const bool is_explicit = request.prefetch_units > 0;
  limits.block_slots = std::max(for_fetching, reused_blocks(sizes, request));
  lower_block_slots(limits, sizes.blocks, is_explicit ? std::max(live, for_fetching) : live);
  return limits;
}

FetchLimits host_fetch_limits(const UnitSizes& sizes, const FetchRequest& request) {
  check_sizes(sizes);
  FetchLimits limits;
  limits.prefetch_units = units_ahead(sizes, request, limits.raised);
  return limits;
}

namespace {

// An evaluation has no backward that would use a block again.
FetchRequest fetch_request(const RunSpec& spec) {
  const config::Config& config = spec.config;
  // If the plan chooses which units stay on the GPU, slots are only for units that pass through.
  const bool reuses =
      spec.trains() && config.zero.offload_param.device != config::OffloadDevice::kAuto;
  return {.prefetch_units = config.placement.prefetch_units,
          .prefetch_bucket_elements = config.zero.prefetch_bucket_elements,
          .max_live_elements = config.zero.max_live_elements,
          .max_reuse_distance_elements = reuses ? config.zero.max_reuse_distance_elements : 0};
}

UnitSizes unit_sizes(const ModelLayout& model) {
  // In a module a block may have no parameters, or none that is trained.
  UnitSizes sizes{.block_elements = 1, .blocks = model.blocks()};
  for (int unit = 0; unit < model.units(); ++unit) {
    const std::uint64_t elements = model.base_layout(unit).elements;
    if (model.is_block(unit))
      sizes.block_elements = std::max(sizes.block_elements, elements);
    else
      sizes.end_elements += elements;
  }
  return sizes;
}

// Lowers the slots to what fits next to everything else that the placement needs on the GPU.
void fit_slots(std::uint64_t room_bytes, const MemoryLedger& ledger, MemoryLedger::Places places,
               int blocks, FetchLimits& limits, std::vector<std::string>& notes) {
  // Blocks that stay on the GPU need no slot.
  const int wanted = std::min(limits.block_slots, ledger.streamed_blocks(places));
  if (wanted == 0) return;
  const std::uint64_t all = ledger.slot_bytes(places, wanted);
  const std::uint64_t needed = ledger.bytes(places).gpu - ledger.amounts(places).gpu.slots + all;
  const std::uint64_t one = all - ledger.slot_bytes(places, wanted - 1);
  if (needed <= room_bytes) return;
  const std::uint64_t too_many = (needed - room_bytes + one - 1) / one;
  const auto wanted_slots = static_cast<std::uint64_t>(wanted);
  const int before = limits.block_slots;
  lower_block_slots(limits, blocks,
                    static_cast<int>(wanted_slots - std::min(too_many, wanted_slots)));
  if (limits.block_slots == before) return;
  notes.push_back("the stage3_* keys of zero_optimization ask for " + std::to_string(before) +
                  " blocks on the GPU, but only " + std::to_string(limits.block_slots) +
                  " fit: the others are fetched again for backward");
}

}  // namespace

FetchPlan plan_fetching(const RunSpec& spec, const MemoryLedger& ledger,
                        std::span<const offload::UnitPlacement> places, const FetchBudget& room) {
  const UnitSizes sizes = unit_sizes(spec.model);
  const FetchRequest request = fetch_request(spec);
  FetchLimits limits =
      spec.on_gpu ? fetch_limits(sizes, request) : host_fetch_limits(sizes, request);
  FetchPlan plan;
  if (spec.on_gpu && room.slots > 0)
    lower_block_slots(limits, spec.model.blocks(), room.slots);
  else if (spec.on_gpu && room.gpu_bytes)
    fit_slots(*room.gpu_bytes, ledger, places, spec.model.blocks(), limits, plan.notes);
  plan.prefetch_units = limits.prefetch_units;
  plan.block_slots = limits.block_slots;
  if (spec.on_gpu || ledger.amounts(places).nvme.params > 0)
    plan.notes.insert(plan.notes.end(), limits.raised.begin(), limits.raised.end());
  return plan;
}

namespace {

constexpr int kMinCacheBuffers = 3;  // per size class: updated, read, read ahead

const char* store_suffix(RunPurpose purpose) {
  switch (purpose) {
    case RunPurpose::kEvaluation:
      return "evaluation";
    case RunPurpose::kGeneration:
      return "generation";
    case RunPurpose::kTraining:
      break;
  }
  return "params";
}

std::int64_t buffers_in_cpu(const config::OffloadParam& asked, std::uint64_t largest_elements) {
  return asked.max_in_cpu_elements / static_cast<std::int64_t>(largest_elements);
}

void note_raised_buffers(const config::OffloadParam& asked, std::uint64_t largest_elements,
                         std::vector<std::string>& notes) {
  if (asked.buffer_elements < static_cast<std::int64_t>(largest_elements)) {
    notes.push_back(raised_note("offload_param.buffer_size", asked.buffer_elements,
                                "the elements of the largest unit on NVMe", largest_elements));
  }
  if (asked.buffer_count < kMinCacheBuffers) {
    notes.push_back(raised_note("offload_param.buffer_count", asked.buffer_count,
                                "one buffer each to read, to compute and to update",
                                kMinCacheBuffers));
  }
  if (buffers_in_cpu(asked, largest_elements) < kMinCacheBuffers) {
    notes.push_back(raised_note(
        "offload_param.max_in_cpu", asked.max_in_cpu_elements,
        "what " + std::to_string(kMinCacheBuffers) + " buffers of the largest unit hold",
        kMinCacheBuffers * largest_elements));
  }
}

}  // namespace

bool ParamPlan::uses_nvme() const {
  return std::any_of(options.units.begin(), options.units.end(),
                     [](const auto& unit) { return unit.tier == offload::Tier::kNvme; });
}

offload::Tier param_tier(bool has_frozen, const offload::UnitPlacement& place) {
  const bool host_updates = place.cpu_elements + place.nvme_elements > 0;
  if (place.gpu_elements > 0 && !host_updates) return offload::Tier::kGpu;
  return place.params_on_nvme && !has_frozen ? offload::Tier::kNvme : offload::Tier::kCpu;
}

offload::Tier base_tier(const offload::UnitPlacement& place) {
  if (place.resident) return offload::Tier::kGpu;
  return place.params_on_nvme ? offload::Tier::kNvme : offload::Tier::kCpu;
}

int param_cache_buffers(const config::OffloadParam& asked, std::uint64_t largest_elements) {
  if (largest_elements == 0) return kMinCacheBuffers;
  return static_cast<int>(std::clamp<std::int64_t>(
      std::min(asked.buffer_count, buffers_in_cpu(asked, largest_elements)), kMinCacheBuffers,
      offload::ParamLayout::kMaxBuffers));
}

namespace {

std::vector<offload::ParamUnit> trained_units(const RunSpec& spec,
                                              std::span<const offload::UnitPlacement> places) {
  std::vector<offload::ParamUnit> units;
  for (int unit = 0; unit < spec.model.units(); ++unit) {
    const UnitLayout& layout = spec.model.layout(unit);
    units.push_back(
        {.name = layout.name,
         .elements = spec.shard(unit).elements,
         .tier = spec.shard(unit).elements > 0
                     ? param_tier(spec.model.has_frozen(), places[static_cast<std::size_t>(unit)])
                     : offload::Tier::kCpu});
  }
  return units;
}

std::vector<offload::ParamUnit> base_units(const RunSpec& spec,
                                           std::span<const offload::UnitPlacement> places) {
  const BaseForm form = BaseForm::of(spec);
  std::vector<offload::ParamUnit> units;
  for (int unit = 0; unit < spec.model.units(); ++unit) {
    const UnitLayout& layout = spec.model.frozen(unit);
    const std::uint64_t elements = form.shard(layout).elements;
    const offload::Tier tier = base_tier(places[static_cast<std::size_t>(unit)]);
    const bool is_empty = elements == 0 && tier == offload::Tier::kNvme;
    units.push_back(
        {.name = layout.name, .elements = elements, .tier = is_empty ? offload::Tier::kCpu : tier});
  }
  return units;
}

// Units are read from NVMe one unit ahead of the copies to the GPU.
ParamPlan plan_units(const RunSpec& spec, std::vector<offload::ParamUnit> units, int element_bytes,
                     int prefetch_units, std::vector<int> nvme_weights) {
  const config::Config& config = spec.config;
  ParamPlan plan;
  offload::ParamOffloader::Options& options = plan.options;
  std::uint64_t largest = 0;
  for (int unit = 0; unit < spec.model.units(); ++unit) {
    if (units[static_cast<std::size_t>(unit)].tier != offload::Tier::kNvme) continue;
    const offload::RankPart ranks = spec.model.has_frozen() ? spec.base_ranks() : spec.ranks;
    largest =
        std::max(largest, offload::shard_of(spec.model.base_layout(unit).elements, ranks).elements);
  }
  options.units = std::move(units);
  const config::OffloadParam& asked = config.zero.offload_param;
  if (largest > 0) note_raised_buffers(asked, largest, plan.notes);
  options.element_bytes = element_bytes;
  options.cache_buffers = param_cache_buffers(asked, largest);
  // All buffers except the one in use: reading further ahead would evict units before their use.
  options.read_ahead = std::min(prefetch_units + (spec.on_gpu ? 1 : 0), options.cache_buffers - 1);
  options.store.paths = config.param_nvme_paths();
  options.store.weights = std::move(nvme_weights);
  // Weights may be used while the run that produces them continues.
  options.store.run = store_name(config, store_suffix(spec.purpose), spec.ranks);
  options.store.label = "parameters";
  return plan;
}

}  // namespace

ParamPlan plan_params(const RunSpec& spec, std::span<const offload::UnitPlacement> places,
                      int prefetch_units, std::vector<int> nvme_weights) {
  return plan_units(spec, trained_units(spec, places),
                    offload::param_bytes_per_element(spec.types().form), prefetch_units,
                    std::move(nvme_weights));
}

ParamPlan plan_base_params(const RunSpec& spec, std::span<const offload::UnitPlacement> places,
                           int prefetch_units, std::vector<int> nvme_weights) {
  const BaseForm form = BaseForm::of(spec);
  return plan_units(spec, base_units(spec, places),
                    form.is_encoded() ? 1 : offload::param_bytes_per_element(form.form),
                    prefetch_units, std::move(nvme_weights));
}

}  // namespace sluice::engine
