#include "engine/budget/state_plan.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

namespace sluice::engine {
namespace {

using config::OffloadDevice;
using offload::UnitPlacement;
using Places = std::span<const UnitPlacement>;

offload::UnitSpec unit_spec(const UnitLayout& layout) {
  offload::UnitSpec unit{.name = layout.name, .ranges = {}};
  for (const int group : {kDecayed, kUndecayed}) {
    const std::uint64_t elements = layout.elements_of_group(group);
    if (elements > 0) unit.ranges.push_back({.group = group, .elements = elements});
  }
  return unit;
}

Result<std::vector<offload::SubGroup>> place(const config::Config& config, Places places,
                                             const MemoryPlan& plan) {
  const auto sub_group_elements =
      static_cast<std::uint64_t>(std::max<std::int64_t>(config.zero.sub_group_elements, 1));
  const auto fractions = asked_fractions(config, plan.cuda);
  if (fractions || places.empty()) {
    return offload::place_by_fractions(plan.optimizer.units, sub_group_elements,
                                       fractions.value_or(offload::TierFractions{}));
  }
  std::vector<offload::TierElements> elements;
  for (const UnitPlacement& it : places)
    elements.push_back({.gpu = it.gpu_elements, .cpu = it.cpu_elements, .nvme = it.nvme_elements});
  return offload::place_by_elements(plan.optimizer.units, sub_group_elements, elements);
}

bool keeps(const config::Placement& placement, Places places, std::size_t unit) {
  if (placement.recompute != Tristate::kAuto) return placement.recompute == Tristate::kOff;
  return !places.empty() && places[unit].activations == offload::ActivationPlace::kKeep;
}

}  // namespace

Status place_state(const config::Config& config, const ModelLayout& model, Places places,
                   MemoryPlan& plan) {
  plan.optimizer.units.clear();
  for (int unit = 0; unit < model.units(); ++unit)
    plan.optimizer.units.push_back(unit_spec(model.layout(unit)));
  SLUICE_ASSIGN_OR_RETURN(plan.optimizer.placement, place(config, places, plan));

  const OffloadDevice params = config.zero.offload_param.device;
  std::vector<bool> resident;
  for (int unit = 0; unit < model.units(); ++unit) {
    const auto u = static_cast<std::size_t>(unit);
    const bool chosen = params == OffloadDevice::kAuto && !places.empty() && places[u].resident;
    resident.push_back(plan.cuda && (params == OffloadDevice::kNone || chosen));
    // The embedding and the head keep nothing that could be computed again.
    plan.keeps_activations.push_back(model.is_block(unit) && keeps(config.placement, places, u));
  }
  plan.residency = offload::UnitResidency(model.units(), plan.optimizer.placement, resident);
  if (params == OffloadDevice::kCpu || params == OffloadDevice::kNvme) {
    if (is_used(plan, offload::Tier::kGpu))
      plan.notes.push_back(
          "zero_optimization.offload_param.device does not move the parameters of units whose "
          "optimizer state is on the GPU: they are updated there, so they stay there");
  }
  return {};
}

std::optional<offload::TierFractions> asked_fractions(const config::Config& config, bool on_gpu) {
  offload::TierFractions fractions{.gpu = 0, .cpu = 0, .nvme = 0};
  const config::OffloadOptimizer& asked = config.zero.offload_optimizer;
  if (config.placement.optimizer_fractions) {
    const config::TierFractions& given = *config.placement.optimizer_fractions;
    fractions = {.gpu = given.gpu, .cpu = given.cpu, .nvme = given.nvme};
  } else if (asked.device == OffloadDevice::kAuto) {
    return std::nullopt;
  } else {
    (asked.device == OffloadDevice::kNvme ? fractions.nvme : fractions.cpu) = asked.ratio;
    fractions.gpu = 1 - asked.ratio;
    if (asked.device == OffloadDevice::kNone) fractions = {.gpu = 1, .cpu = 0, .nvme = 0};
  }
  if (!on_gpu) fractions.cpu += std::exchange(fractions.gpu, 0);
  return fractions;
}

bool is_used(const MemoryPlan& plan, offload::Tier tier) {
  const auto& placement = plan.optimizer.placement;
  return std::any_of(placement.begin(), placement.end(),
                     [&](const offload::SubGroup& it) { return it.tier == tier; });
}

std::optional<int> unit_inputs_on_gpu(const config::Placement& placement, Places places,
                                      int ring_blocks) {
  if (placement.boundaries_to_cpu == Tristate::kOn) return ring_blocks;
  if (placement.boundaries_to_cpu == Tristate::kOff) return std::nullopt;
  const auto leaving = std::count_if(places.begin(), places.end(), [](const UnitPlacement& it) {
    return it.activations == offload::ActivationPlace::kOffload;
  });
  if (leaving == 0) return std::nullopt;
  constexpr int kEnds = 2;  // the embedding and the head
  return static_cast<int>(places.size()) - kEnds - static_cast<int>(leaving);
}

}  // namespace sluice::engine
