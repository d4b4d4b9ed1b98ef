// PlacementSpace: the placements that the planner chooses from, by a few numbers each.
//
// What is settled here and not searched:
// - State on the GPU is that of the embedding and then either of the first blocks: they are wanted
//   first in the next forward, when there is nothing for their update to hide under, and the
//   gradients that they leave on the GPU are the last of backward, whose transfer to the host would
//   have nothing to hide under either; or of blocks all through the model, so that the bus has time
//   for the others. The head may come before them: its update is the last, and forward ends with
//   it.
// - State that RAM does not hold is either the same share of each unit's, so that the drives have
//   work throughout the update, or that of the last elements, on which they work while forward runs
//   through the others. RAM holds as much as it can: a byte of state on NVMe costs two of traffic a
//   step.
// - Parameters go to NVMe only where all state has left RAM: a byte of theirs costs three. Frozen
//   ones go first: they are never written, and the state beside them is little.
// - Inputs of the first units go to the host: they have the longest time to come back. Some of
//   those, all through the model, go on to the drives, which thus have the time of all passes.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "offload/planner/placement.h"

namespace sluice::offload {

enum class Spread : std::uint8_t { kFirst, kEven, kLast };

struct PlacementKnobs {
  std::uint64_t gpu_elements = 0;
  bool head_first = false;  // of the GPU's elements
  bool gpu_even = false;    // blocks all through the model, not the first
  bool nvme_last = false;   // the last elements, not a share of each unit
  int resident = 0;         // besides the ends and the units with state on the GPU
  int kept = 0;             // units whose activations are kept
  int offloaded = 0;        // units whose inputs go to the host
  int spilled = 0;          // and of those to the drives; without a GPU: of all
  Spread resident_spread = Spread::kEven;
  Spread kept_spread = Spread::kEven;

  bool operator==(const PlacementKnobs&) const = default;
};

class PlacementSpace {
 public:
  explicit PlacementSpace(const PlannerInput& input);

  // Bounds of the knobs: where a rule fixes one, both are the same.
  std::uint64_t least_gpu_elements() const { return least_gpu_elements_; }
  std::uint64_t most_gpu_elements() const { return most_gpu_elements_; }
  int units() const { return static_cast<int>(input_.units.size()); }
  int least_kept() const { return least_kept_; }
  int most_kept() const { return most_kept_; }
  int most_resident() const { return most_resident_; }
  int least_offloaded(int kept) const;
  int most_offloaded(int kept) const;
  int least_spilled(int offloaded) const;
  int most_spilled(int offloaded) const;
  // The values tried for gpu_elements, in ascending order: where units end, and between if those
  // are few.
  const std::vector<std::uint64_t>& gpu_steps() const { return gpu_steps_; }

  // It need not be within the budget. Knobs beyond their bounds are clamped.
  std::vector<UnitPlacement> places(const PlacementKnobs& knobs) const;
  // `resident` is set to the most that the GPU's budget allows; false: not even 0.
  bool fill_residents(PlacementKnobs& knobs) const;

 private:
  PlacementKnobs within_bounds(PlacementKnobs knobs) const;
  void plan_gpu_steps();
  void place_gpu_state(const PlacementKnobs& knobs, std::vector<UnitPlacement>& places) const;
  std::vector<std::size_t> gpu_order(const PlacementKnobs& knobs, std::uint64_t elements) const;
  void place_residents(const PlacementKnobs& knobs, std::vector<UnitPlacement>& places) const;
  void place_activations(const PlacementKnobs& knobs, std::vector<UnitPlacement>& places) const;
  void place_host(const PlacementKnobs& knobs, std::vector<UnitPlacement>& places) const;
  void place_host_state(const PlacementKnobs& knobs, std::uint64_t on_nvme,
                        std::vector<UnitPlacement>& places) const;
  void fit_host_state(const PlacementKnobs& knobs, std::vector<UnitPlacement>& places) const;
  std::uint64_t beyond_ram(std::span<const UnitPlacement> places) const;  // bytes
  std::vector<std::size_t> spill_order(std::span<const UnitPlacement> places) const;
  void spill_params(std::vector<UnitPlacement>& places) const;

  const PlannerInput& input_;
  std::vector<std::uint64_t> gpu_steps_;
  std::vector<int> with_activations_;
  std::vector<int> with_inputs_;
  std::uint64_t elements_ = 0;
  std::uint64_t least_gpu_elements_ = 0;
  std::uint64_t most_gpu_elements_ = 0;
  int most_resident_ = 0;
  int least_kept_ = 0;
  int most_kept_ = 0;
};

}  // namespace sluice::offload
