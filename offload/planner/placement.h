// The planner's input: a model's units, a machine's speeds, budgets and rules, and a ledger that
// counts the bytes of a placement.
//
// Threads: pure functions.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "aio/tristate.h"
#include "offload/planner/machine_speeds.h"
#include "offload/planner/step_model.h"
#include "offload/sub_groups.h"

namespace sluice::offload {

struct TierBytes {
  std::uint64_t gpu = 0;
  std::uint64_t cpu = 0;
  std::uint64_t nvme = 0;

  std::uint64_t total() const { return gpu + cpu + nvme; }
  bool within(const TierBytes& budget) const {
    return gpu <= budget.gpu && cpu <= budget.cpu && nvme <= budget.nvme;
  }
  // The bytes above the budget, tier by tier.
  TierBytes beyond(const TierBytes& budget) const;
};

// The bytes that a placement takes in each tier, exactly. The planner compares placements by it,
// and the run allocates exactly that. Implemented by code that has the model and all its parts.
//
// Threads: const methods from any thread. A plan makes some hundred thousand calls: they should not
//          allocate.
class PlacementLedger {
 public:
  virtual ~PlacementLedger() = default;
  // `places` has one entry per unit of the model. The result includes what every placement takes.
  virtual TierBytes bytes(std::span<const UnitPlacement> places) const = 0;
};

// What the user set explicitly; it is obeyed literally.
struct PlacementRules {
  std::vector<TierElements> state;  // by unit: where its state is; empty: the planner decides
  bool state_on_gpu = true;         // false: there is no GPU
  bool state_on_nvme = true;        // this and the next: false if no folder was given
  bool params_on_nvme = true;
  // kGpu: every unit is resident. With kCpu or kNvme the host copies are in that tier. Then only
  // the embedding, the head and units with state on the GPU have their own places on the GPU.
  std::optional<Tier> params;
  Tristate recompute = Tristate::kAuto;           // kOff: every unit keeps its activations
  Tristate unit_inputs_to_cpu = Tristate::kAuto;  // kOn: all inputs outside the ring on the GPU
  // kOn: all inputs that leave the GPU; without a GPU, all but one. kOff: as if no folder was
  // given.
  Tristate unit_inputs_to_nvme = Tristate::kOff;
  // Which units are whole on the GPU. kOn: all; kOff: none. ZeRO's stages set these for several
  // ranks. kAuto: the units that the planner chooses, and units with state on the GPU.
  Tristate resident = Tristate::kAuto;
};

struct PlannerInput {
  // Embedding, blocks, head; the first and the last are always resident. A unit may have no
  // parameters, such as the first and last unit of a module that is only described.
  std::vector<UnitCost> units;
  MachineSpeeds speeds;
  StepModelOptions step;
  PlacementRules rules;
  TierBytes budget;
  // To the drives, averaged over a step. A placement that writes more does not fit.
  double max_nvme_write_bytes_per_s = std::numeric_limits<double>::infinity();
  std::shared_ptr<const PlacementLedger> ledger;
  int unit_input_slots = 4;                 // inputs on the GPU if others go to the host
  std::uint64_t granule_elements = 65'536;  // a unit's elements are split at multiples of it
};

// Whether item `index` of `all` is one of `count` items chosen evenly.
constexpr bool is_chosen_evenly(int index, int count, int all) {
  return (index + 1) * count / all > index * count / all;
}

// Whether the unit has activations to recompute or to keep for backward.
inline bool has_activations(const UnitCost& unit) {
  return unit.kept_bytes > 0 || unit.recompute_s > 0;
}

}  // namespace sluice::offload
