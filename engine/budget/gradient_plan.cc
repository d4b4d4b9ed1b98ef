#include "engine/budget/gradient_plan.h"

#include <algorithm>
#include <string>
#include <utility>

#include "engine/budget/gpu_plan.h"
#include "engine/budget/stripe_plan.h"

namespace sluice::engine {

const char* why_no_gradients_on_nvme(const RunSpec& spec) {
  if (spec.on_gpu) return nullptr;
  if (spec.names == nullptr)
    return "which without a GPU works only for modules of the Python package: sluice train keeps "
           "gradients in RAM there";
  if (spec.ranks.world > 1) return "but several ranks without GPUs keep gradients in RAM";
  if (spec.sums().levels > 1)
    return "but run.lanes or run.rounds need several gradient sums at a time, which without a GPU "
           "are kept in RAM";
  return nullptr;
}

bool may_move_gradients(const RunSpec& spec) {
  return spec.trains() && spec.config.placement.gradients_to_nvme == Tristate::kAuto &&
         !spec.config.gradient_nvme_paths().empty() && why_no_gradients_on_nvme(spec) == nullptr;
}

Status check_gradients_on_nvme(const RunSpec& spec) {
  if (!spec.gradients_on_nvme()) return {};
  const char* const why = why_no_gradients_on_nvme(spec);
  if (why == nullptr) return {};
  return Error(ErrorCode::kUnsupported, std::string("placement.gradients_to_nvme is on, ") + why +
                                            ": set it to \"auto\" or \"off\"");
}

// One that backward fills, one that the update reads, and one that is read ahead or written back.
// Sums that return from NVMe for the next wave need one more.
int gradient_buffers(const RunSpec& spec) { return spec.on_gpu && spec.sums().kept > 0 ? 4 : 3; }

std::uint64_t gradient_place_bytes(const RunSpec& spec, int unit) {
  if (!spec.on_gpu) return spec.model.layout(unit).slot_elements * sizeof(float);
  const SinkFootprint footprint(spec.sums(), spec.ranks.world);
  return footprint.host_gradient_bytes(
      unit_gradient_bytes(spec.model, spec.types().gradient, spec.sums(), unit, spec.ranks),
      /*gpu_state=*/false, /*host_state=*/true);
}

std::optional<offload::ParamOffloader::Options> plan_gradients(
    const RunSpec& spec, const offload::UnitResidency& residency, std::vector<int> nvme_weights) {
  offload::ParamOffloader::Options options;
  options.element_bytes = sizeof(float);
  bool is_needed = false;
  for (int unit = 0; unit < spec.model.units(); ++unit) {
    const UnitLayout& layout = spec.model.layout(unit);
    const bool is_placed =
        spec.shard(unit).elements > 0 && (!spec.on_gpu || residency.has_host_state(unit));
    const std::uint64_t elements = gradient_place_bytes(spec, unit) / sizeof(float);
    options.units.push_back({.name = layout.name,
                             .elements = is_placed ? elements : 0,
                             .tier = is_placed ? offload::Tier::kNvme : offload::Tier::kCpu});
    is_needed = is_needed || is_placed;
  }
  if (!is_needed) return std::nullopt;
  options.cache_buffers = gradient_buffers(spec);
  options.read_ahead = options.cache_buffers - 1;
  options.store.paths = spec.config.gradient_nvme_paths();
  options.store.weights = std::move(nvme_weights);
  options.store.run = store_name(spec.config, "gradients", spec.ranks);
  options.store.label = "gradients";
  return options;
}

}  // namespace sluice::engine
