#include "engine/budget/param_plan.h"

#include <algorithm>
#include <utility>

#include "engine/budget/base_form.h"
#include "engine/budget/raised_note.h"
#include "engine/budget/stripe_plan.h"

namespace sluice::engine {
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
                    form.is_int8 ? 1 : offload::param_bytes_per_element(form.form), prefetch_units,
                    std::move(nvme_weights));
}

}  // namespace sluice::engine
