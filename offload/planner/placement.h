// The planner's input, and the bytes that a placement takes.
//
// Threads: pure functions.
#pragma once

#include <cstdint>
#include <optional>
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
  // What exceeds the budget, tier by tier.
  TierBytes beyond(const TierBytes& budget) const;
};

// Of one element, by where its state is.
struct ElementBytes {
  double gpu_state = 10;  // besides the parameter, whose place on the GPU is its only one
  double gpu_grad = 2;    // kept until its update
  double gpu_param = 2;   // resident, in a slot, or as a gradient on its way out
  double host_state = 10;
  double host_param = 2;
  double host_grad = 2;    // pinned, of state on cpu and nvme
  double nvme_state = 10;  // and of a buffer that it passes through
  double nvme_param = 2;
};

// What the user stated explicitly; it is obeyed literally.
struct PlacementRules {
  std::vector<TierElements> state;  // of each unit, where it is; empty: the planner's
  bool state_on_gpu = true;         // false: there is no GPU
  bool state_on_nvme = true;        // false: no folder was named, as for the next
  bool params_on_nvme = true;
  // kGpu: every unit is resident. kCpu and kNvme: the host's copies are there, and only embedding
  // and head, and units with state on the GPU, have places of their own on the GPU.
  std::optional<Tier> params;
  Tristate recompute = Tristate::kAuto;          // kOff: every unit keeps its activations
  Tristate boundaries_to_cpu = Tristate::kAuto;  // kOn: all but those of the ring on the GPU
};

struct PlannerInput {
  std::vector<UnitCost> units;  // embedding, blocks, head; the ends are always resident
  MachineSpeeds speeds;
  StepModelOptions step;
  ElementBytes bytes;
  PlacementRules rules;
  TierBytes budget;
  TierBytes fixed;                      // of the budget, whatever the placement
  std::uint64_t micro_batch_bytes = 0;  // of fixed.gpu: what grows with the micro-batch
  // Of fixed.gpu: what halving the micro-batch would save, with twice as many in a step.
  std::uint64_t half_micro_batch_bytes = 0;
  int unit_input_slots = 4;                 // inputs on the GPU, where others go to the host
  std::uint64_t granule_elements = 65'536;  // a unit's elements are split at multiples of it
};

// Whether backward has anything to recompute, or to keep instead.
inline bool has_activations(const UnitCost& unit) {
  return unit.kept_bytes > 0 || unit.recompute_s > 0;
}

// All that the placement takes, `fixed` included. Gradients and the host's copy of parameters are
// a whole unit's, on each side that updates any of it.
TierBytes placed_bytes(const PlannerInput& input, const std::vector<UnitPlacement>& places);

}  // namespace sluice::offload
