#include "engine/budget/state_plan.h"

#include <algorithm>
#include <string>
#include <utility>

#include "aio/units.h"
#include "engine/budget/raised_note.h"
#include "engine/budget/resolved_placement.h"
#include "engine/budget/stripe_plan.h"
#include "engine/checkpoint/part_writer.h"
#include "engine/families/families.h"
#include "offload/state/state_footprint.h"

namespace sluice::engine {
namespace {

using config::OffloadDevice;
using offload::UnitPlacement;

constexpr int kMinSwapBuffers = 3;  // one read, one computed, one written

std::int64_t asked_buffers(const config::Config& config) {
  return config.placement.swap_buffers > 0 ? config.placement.swap_buffers
                                           : config.zero.offload_optimizer.buffer_count;
}

Result<std::vector<offload::SubGroup>> sub_groups(const RunSpec& spec,
                                                  std::span<const offload::UnitSpec> units,
                                                  std::span<const UnitPlacement> places) {
  SLUICE_ASSIGN_OR_RETURN(auto asked, asked_sub_groups(spec));
  if (!asked.empty()) return asked;
  std::vector<offload::TierElements> elements;
  for (const UnitPlacement& it : places)
    elements.push_back({.gpu = it.gpu_elements, .cpu = it.cpu_elements, .nvme = it.nvme_elements});
  return offload::place_by_elements(units, sub_group_elements(spec.config), elements);
}

// Without an optimizer the adapters are copied to the GPU once.
offload::UnitResidency adapters_from_host(const RunSpec& spec) {
  std::vector<offload::SubGroup> placement;
  for (int unit = 0; unit < spec.model.units(); ++unit) {
    const std::uint64_t elements = spec.model.layout(unit).elements;
    if (elements > 0) placement.push_back({.unit = unit, .elements = elements});
  }
  const std::vector<bool> resident(static_cast<std::size_t>(spec.model.units()), spec.on_gpu);
  return {spec.model.units(), placement, resident};
}

// For parameters whose step scalars differ from UnitSpec::ranges. A parameter's range includes the
// gap after it.
std::vector<offload::GroupRange> scalars_of(const UnitLayout& layout, std::span<const int> of) {
  const std::vector<ParameterSpec>& parameters = layout.parameters;
  std::vector<offload::GroupRange> ranges;
  bool differ = false;
  for (std::size_t i = 0; i < of.size(); ++i) {
    const std::uint64_t end = i + 1 < of.size() ? parameters[i + 1].first_element : layout.elements;
    ranges.push_back({.group = of[i], .elements = end - parameters[i].first_element});
    differ |= of[i] != parameters[i].group;
  }
  return differ ? ranges : std::vector<offload::GroupRange>();
}

Status apply_settings(const RunSpec& spec, StatePlan& plan) {
  const ModelShape shape = spec.config.model.shape();
  const ParameterNames names =
      spec.names != nullptr ? *spec.names : family_of(shape).parameter_names(shape);
  SLUICE_ASSIGN_OR_RETURN(config::ParameterSettings settings,
                          config::parameter_settings(spec.config.optimizer, spec.model, names));
  for (std::size_t unit = 0; unit < settings.of.size(); ++unit)
    plan.optimizer.units[unit].scalars =
        offload::shard_of(
            {.name = {},
             .ranges = scalars_of(spec.model.layout(static_cast<int>(unit)), settings.of[unit])},
            spec.ranks)
            .ranges;
  plan.settings = std::move(settings.each);
  return {};
}

}  // namespace

bool StatePlan::uses(offload::Tier tier) const {
  return std::any_of(optimizer.placement.begin(), optimizer.placement.end(),
                     [&](const offload::SubGroup& it) { return it.tier == tier; });
}

Result<StatePlan> plan_state(const RunSpec& spec, std::span<const UnitPlacement> places,
                             std::vector<int> nvme_weights) {
  StatePlan plan;
  if (!spec.trains()) {
    if (spec.model.has_frozen()) plan.residency = adapters_from_host(spec);
    return plan;
  }
  const config::Config& config = spec.config;
  offload::OptimizerOffloader::Options& optimizer = plan.optimizer;
  optimizer.form = spec.types().state();
  optimizer.grad_type = spec.types().gradient;
  optimizer.isa = offload::best_isa();
  optimizer.run_seed = static_cast<std::uint64_t>(config.run.seed);
  optimizer.units = unit_specs(spec);
  SLUICE_RETURN_IF_ERROR(apply_settings(spec, plan));
  SLUICE_ASSIGN_OR_RETURN(optimizer.placement, sub_groups(spec, optimizer.units, places));
  optimizer.record_elements = record_elements(config);
  optimizer.in_place = config.run.checkpoint_in_place;
  optimizer.swap.buffers = swap_buffers(config);
  optimizer.store.paths = config.optimizer_nvme_paths();
  // A checkpoint names them, and is read from anywhere.
  if (optimizer.in_place)
    for (std::string& path : optimizer.store.paths) path = from_the_root(path);
  optimizer.store.weights = std::move(nvme_weights);
  optimizer.store.run = store_name(config, "optimizer", spec.ranks);
  optimizer.store.label = "optimizer state";

  plan.gpu_bytes = offload::StateFootprint::of(
                       {.form = optimizer.form, .record_elements = optimizer.record_elements},
                       optimizer.placement)
                       .gpu_bytes();
  std::vector<bool> resident;
  // Adapters of a frozen model are small, and always stay in RAM.
  for (const UnitPlacement& place : places)
    resident.push_back(spec.model.has_frozen() ? spec.on_gpu : place.resident);
  plan.residency = offload::UnitResidency(spec.model.units(), optimizer.placement, resident,
                                          /*is_sharded=*/spec.ranks.world > 1 || spec.sends_int8());
  const OffloadDevice params = config.zero.offload_param.device;
  if ((params == OffloadDevice::kCpu || params == OffloadDevice::kNvme) &&
      plan.uses(offload::Tier::kGpu)) {
    plan.notes.push_back(
        "zero_optimization.offload_param.device does not move parameters of units whose optimizer "
        "state is on the GPU: they stay where they are updated");
  }
  if (asked_buffers(config) < kMinSwapBuffers && plan.uses(offload::Tier::kNvme)) {
    plan.notes.push_back(raised_note("offload_optimizer.buffer_count", asked_buffers(config),
                                     "one record each that is read, computed and written",
                                     kMinSwapBuffers));
  }
  return plan;
}

std::uint64_t save_buffer_bytes(const RunSpec& spec) {
  constexpr std::uint64_t kStateBytes = 12;  // per element, in fp32
  const std::uint64_t staging = PartWriter::staging_bytes({});
  return spec.ranks.world == 1 ? staging : std::max(staging, kStateBytes * kGatheredElements);
}

std::uint64_t record_elements(const config::Config& config) {
  constexpr std::uint64_t kMost = std::uint64_t{16} << 20;
  const std::uint64_t asked = config.placement.record_elements > 0
                                  ? static_cast<std::uint64_t>(config.placement.record_elements)
                                  : kMost;
  return std::clamp(align_down(asked, offload::kTileElements), offload::kTileElements, kMost);
}

int swap_buffers(const config::Config& config) {
  return static_cast<int>(std::clamp<std::int64_t>(asked_buffers(config), kMinSwapBuffers,
                                                   swap::SwapPipeline::kMaxBuffers));
}

}  // namespace sluice::engine
