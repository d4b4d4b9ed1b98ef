#include "engine/budget/resolved_placement.h"

#include <algorithm>
#include <string>
#include <utility>

#include "aio/check.h"

namespace sluice::engine {
namespace {

using config::OffloadDevice;
using offload::ActivationPlace;
using offload::UnitPlacement;

offload::UnitSpec unit_spec(const UnitLayout& layout) {
  offload::UnitSpec unit{.name = layout.name, .ranges = {}};
  for (const int group : {kDecayed, kUndecayed}) {
    const std::uint64_t elements = layout.elements_of_group(group);
    if (elements > 0) unit.ranges.push_back({.group = group, .elements = elements});
  }
  return unit;
}

// At ZeRO stage 3 with several ranks, a unit's parameters are sharded between their uses. Units
// that are rounded have the places of shards, even with one rank.
bool shards_params(const RunSpec& spec) {
  return (spec.ranks.world > 1 && spec.config.zero.stage == 3) || spec.sends_int8();
}

// The configured device, or else the planner's choice, decides which units have their own GPU
// buffers. Units with state on the GPU have one in any case; with several ranks, all units do
// unless they are sharded. In a frozen model only the embedding and the head always have one.
void settle_params(const RunSpec& spec, std::vector<UnitPlacement>& places) {
  const OffloadDevice device = spec.config.zero.offload_param.device;
  const std::vector<bool> persistent = persistent_units(spec);
  const bool frozen = spec.model.has_frozen();
  const bool shards = !frozen && shards_params(spec);  // resident frozen units are whole
  for (std::size_t unit = 0; unit < places.size(); ++unit) {
    UnitPlacement& place = places[unit];
    if (device != OffloadDevice::kAuto) {
      place.params_on_nvme = device == OffloadDevice::kNvme && !persistent[unit];
      place.resident = device == OffloadDevice::kNone && !shards;
    }
    const bool may_stay = spec.on_gpu && spec.trains();
    if (frozen)  // the ends always have their own buffers, so the host needs no copy
      place.resident |= unit == 0 || unit + 1 == places.size();
    else
      place.resident |= spec.ranks.world == 1 ? place.gpu_elements > 0 && !shards : !shards;
    place.resident &= may_stay;
    if (frozen && place.resident) place.params_on_nvme = false;
  }
}

// The embedding and the head save nothing that could be recomputed.
void settle_activations(const RunSpec& spec, std::vector<UnitPlacement>& places) {
  const config::Placement& asked = spec.config.placement;
  for (int unit = 0; unit < spec.model.units(); ++unit) {
    ActivationPlace& activations = places[static_cast<std::size_t>(unit)].activations;
    if (!spec.trains() || !spec.model.is_block(unit)) {
      activations = ActivationPlace::kRecompute;
      continue;
    }
    if (asked.unit_inputs_to_nvme == Tristate::kOff && activations == ActivationPlace::kSpill)
      activations = ActivationPlace::kOffload;
    // On the CPU, what is saved does not depend on where inputs wait.
    const bool spills_in_ram = !spec.on_gpu && activations == ActivationPlace::kSpill;
    if (asked.recompute == Tristate::kOff && !spills_in_ram) activations = ActivationPlace::kKeep;
    if (asked.recompute == Tristate::kOn && activations == ActivationPlace::kKeep)
      activations = ActivationPlace::kRecompute;
    const bool may_leave = spec.on_gpu && asked.unit_inputs_to_cpu != Tristate::kOff;
    if (offload::input_leaves(activations) && !may_leave && !spills_in_ram)
      activations = ActivationPlace::kRecompute;
  }
}

}  // namespace

Result<std::vector<UnitPlacement>> resolve_placement(const RunSpec& spec,
                                                     std::span<const UnitPlacement> chosen) {
  const auto units = static_cast<std::size_t>(spec.model.units());
  SLUICE_CHECK(chosen.empty() || chosen.size() == units, "each unit has its place");
  for (std::size_t unit = 0; unit < chosen.size(); ++unit) {
    const UnitPlacement& place = chosen[unit];
    const std::uint64_t elements = spec.shard(static_cast<int>(unit)).elements;
    if (place.gpu_elements + place.cpu_elements + place.nvme_elements != elements) {
      return Error(ErrorCode::kInvalidArgument,
                   "the places of unit " + spec.model.layout(static_cast<int>(unit)).name +
                       " do not add up to its " + std::to_string(elements) + " elements");
    }
  }
  std::vector<UnitPlacement> places(units);
  std::copy(chosen.begin(), chosen.end(), places.begin());
  if (!spec.trains() || chosen.empty()) {
    for (std::size_t unit = 0; unit < units; ++unit)
      places[unit] = {.cpu_elements = spec.shard(static_cast<int>(unit)).elements};
  }
  if (spec.trains()) {
    SLUICE_ASSIGN_OR_RETURN(const auto asked, asked_sub_groups(spec));
    const auto elements = tier_elements(spec.model.units(), asked);
    for (std::size_t unit = 0; unit < units && !asked.empty(); ++unit) {
      places[unit].gpu_elements = elements[unit].gpu;
      places[unit].cpu_elements = elements[unit].cpu;
      places[unit].nvme_elements = elements[unit].nvme;
    }
  }
  settle_params(spec, places);
  settle_activations(spec, places);
  return places;
}

std::vector<offload::UnitSpec> unit_specs(const RunSpec& spec) {
  std::vector<offload::UnitSpec> specs;
  specs.reserve(static_cast<std::size_t>(spec.model.units()));
  for (int unit = 0; unit < spec.model.units(); ++unit)
    specs.push_back(offload::shard_of(unit_spec(spec.model.layout(unit)), spec.ranks));
  return specs;
}

std::uint64_t sub_group_elements(const config::Config& config) {
  constexpr std::uint64_t kUsual = 1'000'000'000;
  const std::int64_t given = config.zero.sub_group_elements;
  return given > 0 ? static_cast<std::uint64_t>(given) : kUsual;
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

Result<std::vector<offload::SubGroup>> asked_sub_groups(const RunSpec& spec) {
  const auto fractions = asked_fractions(spec.config, spec.on_gpu);
  if (!fractions) return std::vector<offload::SubGroup>();
  return offload::place_by_fractions(unit_specs(spec), sub_group_elements(spec.config), *fractions);
}

std::vector<offload::TierElements> tier_elements(int units,
                                                 std::span<const offload::SubGroup> sub_groups) {
  std::vector<offload::TierElements> elements(static_cast<std::size_t>(units));
  for (const offload::SubGroup& it : sub_groups) {
    offload::TierElements& unit = elements[static_cast<std::size_t>(it.unit)];
    const bool on_gpu = it.tier == offload::Tier::kGpu;
    (on_gpu ? unit.gpu : it.tier == offload::Tier::kCpu ? unit.cpu : unit.nvme) += it.elements;
  }
  return elements;
}

std::vector<bool> persistent_units(const RunSpec& spec) {
  const config::Zero& zero = spec.config.zero;
  const auto limit = [](std::int64_t elements) {
    return static_cast<std::uint64_t>(std::max<std::int64_t>(elements, 0));
  };
  std::vector<bool> persistent(static_cast<std::size_t>(spec.model.units()), false);
  if (zero.offload_param.device == OffloadDevice::kAuto) return persistent;
  std::uint64_t left = limit(zero.model_persistence_threshold_elements);
  for (int unit = 0; unit < spec.model.units(); ++unit) {
    const std::uint64_t elements = spec.model.base_layout(unit).elements;
    if (elements > std::min(limit(zero.param_persistence_threshold_elements), left)) continue;
    persistent[static_cast<std::size_t>(unit)] = true;
    left -= elements;
  }
  return persistent;
}

}  // namespace sluice::engine
