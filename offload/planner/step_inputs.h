// StepInputs: what the tasks of a step are derived from: the units, their placement, and the
// machine.
//
// Memory: refers to the caller's data, which must outlive it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "offload/planner/machine_speeds.h"
#include "offload/planner/step_model.h"

namespace sluice::offload {

struct StepInputs {
  const std::vector<UnitCost>& units;
  const std::vector<UnitPlacement>& places;  // one per unit
  const MachineSpeeds& speeds;
  const StepModelOptions& options;

  int count() const { return static_cast<int>(units.size()); }
  const UnitCost& unit(int index) const { return units[static_cast<std::size_t>(index)]; }
  const UnitPlacement& place(int index) const { return places[static_cast<std::size_t>(index)]; }

  // The elements of the unit's state that the host updates.
  double host_elements(int index) const {
    return static_cast<double>(place(index).cpu_elements + place(index).nvme_elements);
  }
  // Includes the padding of shards.
  double whole_elements(int index) const {
    return static_cast<double>(std::max(unit(index).whole_elements, unit(index).elements));
  }
  double param_bytes(int index) const { return unit(index).streamed_bytes(options.bytes.param); }
  bool has_bus() const { return speeds.bus.in_bytes_per_s > 0; }
  bool uses_drives() const {
    return options.gradient_buffers > 0 ||
           std::any_of(places.begin(), places.end(), [](const UnitPlacement& place) {
             return place.nvme_elements > 0 || place.params_on_nvme ||
                    place.activations == ActivationPlace::kSpill;
           });
  }
};

}  // namespace sluice::offload
