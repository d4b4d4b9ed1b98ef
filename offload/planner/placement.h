// The planner's input: a model's units, a machine's speeds, budgets and rules, and what counts the
// bytes of a placement.
//
// Threads: pure functions.
#pragma once

#include <cstdint>
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
  // What exceeds the budget, tier by tier.
  TierBytes beyond(const TierBytes& budget) const;
};

// What a placement takes of each tier, to the byte. The planner weighs placements by it; the run
// that follows allocates just that. Whoever knows the model and its parts implements it.
//
// Threads: const, from any. Some hundred thousand calls make a plan: no call should allocate.
class PlacementLedger {
 public:
  virtual ~PlacementLedger() = default;
  // As many places as the model has units. What any placement takes is included.
  virtual TierBytes bytes(std::span<const UnitPlacement> places) const = 0;
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
  // kOn: all that leave the GPU, and where there is none all but one. kOff: as where no folder was
  // named.
  Tristate boundaries_to_nvme = Tristate::kOff;
  // Which units are whole on the GPU: kOn: all, kOff: none, as ZeRO's stages have it with several
  // ranks; kAuto: the planner's, and those with state there.
  Tristate resident = Tristate::kAuto;
};

struct PlannerInput {
  // Embedding, blocks, head; the ends are always resident. A unit may be without parameters, as the
  // ends of a module that is only described.
  std::vector<UnitCost> units;
  MachineSpeeds speeds;
  StepModelOptions step;
  PlacementRules rules;
  TierBytes budget;
  std::shared_ptr<const PlacementLedger> ledger;
  int unit_input_slots = 4;                 // inputs on the GPU, where others go to the host
  std::uint64_t granule_elements = 65'536;  // a unit's elements are split at multiples of it
};

// Whether the `index`-th of `all` is one of `count` that are chosen all through them.
constexpr bool is_chosen_evenly(int index, int count, int all) {
  return (index + 1) * count / all > index * count / all;
}

// Whether backward has anything to recompute, or to keep instead.
inline bool has_activations(const UnitCost& unit) {
  return unit.kept_bytes > 0 || unit.recompute_s > 0;
}

}  // namespace sluice::offload
