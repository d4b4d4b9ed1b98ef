#include "engine/budget/param_plan.h"

#include <algorithm>

#include "engine/budget/fetch_limits.h"

namespace sluice::engine {
namespace {

constexpr int kMinCacheBuffers = 3;  // of a size class: updated, read, read ahead

// Returns the elements of the largest unit on NVMe.
std::uint64_t place_units(const config::Zero& zero, const ModelLayout& model,
                          std::span<const offload::UnitPlacement> places, MemoryPlan& plan) {
  using config::OffloadDevice;
  const OffloadDevice device = zero.offload_param.device;
  const bool chosen = device == OffloadDevice::kAuto && !places.empty();
  const auto limit = [](std::int64_t elements) {
    return static_cast<std::uint64_t>(std::max<std::int64_t>(elements, 0));
  };
  std::uint64_t persistent_left = limit(zero.model_persistence_threshold_elements);
  std::uint64_t largest = 0;
  for (int unit = 0; unit < model.units(); ++unit) {
    const UnitLayout& layout = model.layout(unit);
    const bool on_nvme = chosen ? places[static_cast<std::size_t>(unit)].params_on_nvme
                                : device == OffloadDevice::kNvme;
    const bool persistent =
        !chosen && layout.elements <=
                       std::min(limit(zero.param_persistence_threshold_elements), persistent_left);
    if (persistent) persistent_left -= layout.elements;
    const bool leaves_host =
        plan.residency.has_gpu_state(unit) && !plan.residency.has_host_state(unit);
    offload::Tier tier = on_nvme && !persistent ? offload::Tier::kNvme : offload::Tier::kCpu;
    if (leaves_host) tier = offload::Tier::kGpu;
    if (tier == offload::Tier::kNvme) largest = std::max(largest, layout.elements);
    plan.params.units.push_back({.name = layout.name, .elements = layout.elements, .tier = tier});
  }
  return largest;
}

// Of each size class, for units of which the largest has this many elements. Buffers are as large
// as the units that they hold: a buffer_size beyond that would be memory that nothing uses.
void choose_param_buffers(const config::OffloadParam& asked, std::uint64_t largest,
                          MemoryPlan& plan) {
  plan.params.cache_buffers = kMinCacheBuffers;
  if (largest == 0) return;
  if (asked.buffer_elements < static_cast<std::int64_t>(largest)) {
    note_raised(plan, "offload_param.buffer_size", asked.buffer_elements,
                "the elements of the largest unit on NVMe", largest);
  }
  if (asked.buffer_count < kMinCacheBuffers) {
    note_raised(plan, "offload_param.buffer_count", asked.buffer_count,
                "one buffer each to read, to compute and to update", kMinCacheBuffers);
  }
  const std::int64_t in_cpu = asked.max_in_cpu_elements / static_cast<std::int64_t>(largest);
  if (in_cpu < kMinCacheBuffers) {
    note_raised(plan, "offload_param.max_in_cpu", asked.max_in_cpu_elements,
                "what " + std::to_string(kMinCacheBuffers) + " buffers of the largest unit hold",
                kMinCacheBuffers * largest);
  }
  plan.params.cache_buffers = static_cast<int>(std::clamp<std::int64_t>(
      std::min(asked.buffer_count, in_cpu), kMinCacheBuffers, offload::ParamLayout::kMaxBuffers));
}

// An evaluation has no backward that would use a block again.
FetchRequest fetch_request(const config::Config& config, RunPurpose purpose) {
  // Where the plan chooses what stays on the GPU, slots are only for passing through.
  const bool reuses = purpose == RunPurpose::kTraining &&
                      config.zero.offload_param.device != config::OffloadDevice::kAuto;
  return {.prefetch_units = config.placement.prefetch_units,
          .prefetch_bucket_elements = config.zero.prefetch_bucket_elements,
          .max_live_elements = config.zero.max_live_elements,
          .max_reuse_distance_elements = reuses ? config.zero.max_reuse_distance_elements : 0};
}

UnitSizes unit_sizes(const ModelLayout& model) {
  UnitSizes sizes{.blocks = model.blocks()};
  for (int unit = 0; unit < model.units(); ++unit) {
    const std::uint64_t elements = model.layout(unit).elements;
    if (model.is_block(unit))
      sizes.block_elements = std::max(sizes.block_elements, elements);
    else
      sizes.end_elements += elements;
  }
  return sizes;
}

// What this many slots for blocks take, including those of embedding and head.
std::uint64_t slot_bytes(const ModelLayout& model, const MemoryPlan& plan, int block_slots) {
  CudaSlotOptions options = slot_options(plan);
  options.block_slots = block_slots;
  return planned_slot_bytes(model, options);
}

// As many slots as fit beside everything else that `plan` has on the GPU.
void fit_slots(std::uint64_t room_bytes, const ModelLayout& model, MemoryPlan& plan,
               FetchLimits& limits) {
  const int wanted = limits.block_slots;
  const std::uint64_t all = slot_bytes(model, plan, wanted);
  const std::uint64_t needed = plan.gpu_bytes() + all;
  const std::uint64_t one = all - slot_bytes(model, plan, wanted - 1);
  if (needed <= room_bytes || one == 0)
    return;  // 0: a build without CUDA, which runs nothing there
  const std::uint64_t too_many = (needed - room_bytes + one - 1) / one;
  const auto wanted_slots = static_cast<std::uint64_t>(wanted);
  lower_block_slots(limits, model.blocks(),
                    static_cast<int>(wanted_slots - std::min(too_many, wanted_slots)));
  if (limits.block_slots == wanted) return;
  plan.notes.push_back("zero_optimization.stage3_max_live_parameters and its neighbours ask for " +
                       std::to_string(wanted) + " blocks on the GPU, where " +
                       std::to_string(limits.block_slots) +
                       " fit: the others are fetched again for backward");
}

}  // namespace

void note_raised(MemoryPlan& plan, const std::string& key, std::int64_t given,
                 const std::string& needed, std::uint64_t raised_to) {
  plan.notes.push_back("zero_optimization." + key + " " + std::to_string(given) + " is below " +
                       needed + ": raised to " + std::to_string(raised_to));
}

void place_params(const config::Zero& zero, const ModelLayout& model,
                  std::span<const offload::UnitPlacement> places, MemoryPlan& plan) {
  choose_param_buffers(zero.offload_param, place_units(zero, model, places, plan), plan);
}

// From NVMe, units reach the host one ahead of those being copied to the GPU.
void plan_fetching(const config::Config& config, const ModelLayout& model,
                   std::optional<std::uint64_t> gpu_room_bytes, MemoryPlan& plan) {
  const UnitSizes sizes = unit_sizes(model);
  const FetchRequest request = fetch_request(config, plan.purpose);
  FetchLimits limits = plan.cuda ? fetch_limits(sizes, request) : host_fetch_limits(sizes, request);
  if (plan.cuda && gpu_room_bytes) fit_slots(*gpu_room_bytes, model, plan, limits);
  plan.prefetch_units = limits.prefetch_units;
  plan.block_slots = limits.block_slots;
  const bool from_nvme = !plan.nvme.empty() && plan.nvme.front().bytes > 0;
  // Into all buffers but that of the unit in use: beyond that, units evict each other unused.
  plan.params.read_ahead =
      std::min(limits.prefetch_units + (plan.cuda ? 1 : 0), plan.params.cache_buffers - 1);
  if (plan.cuda || from_nvme)
    plan.notes.insert(plan.notes.end(), limits.raised.begin(), limits.raised.end());
}

}  // namespace sluice::engine
