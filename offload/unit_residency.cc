#include "offload/unit_residency.h"

#include "aio/check.h"

namespace sluice::offload {

UnitResidency::UnitResidency(int units, std::span<const SubGroup> placement,
                             const std::vector<bool>& resident, bool is_sharded)
    : units_(static_cast<std::size_t>(units)) {
  SLUICE_CHECK(resident.empty() || resident.size() == units_.size(), "one answer for each unit");
  for (std::size_t i = 0; i < resident.size(); ++i) units_[i].resident = resident[i];
  for (const SubGroup& sub_group : placement) {
    Unit& unit = units_[static_cast<std::size_t>(sub_group.unit)];
    if (sub_group.tier == Tier::kGpu) {
      unit.resident |= !is_sharded;
      unit.gpu_state = true;
      continue;
    }
    const bool follows = !unit.host.empty() && unit.host.back().first + unit.host.back().elements ==
                                                   sub_group.first_element;
    if (follows)
      unit.host.back().elements += sub_group.elements;
    else
      unit.host.push_back({.first = sub_group.first_element, .elements = sub_group.elements});
  }
}

const UnitResidency::Unit& UnitResidency::at(int unit) const {
  static const Unit nowhere;
  return units_.empty() ? nowhere : units_[static_cast<std::size_t>(unit)];
}

}  // namespace sluice::offload
