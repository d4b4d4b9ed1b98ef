// PlacementSpace: the placements from which the planner chooses, each described by a few numbers.
//
// These decisions are fixed and not searched:
// - GPU state belongs to the embedding and then either to the first blocks or to blocks spread
//   evenly. The first blocks are needed first in the next forward, when their update has nothing to
//   overlap with. Their gradients are the last of backward, so their transfer to the host would
//   have nothing to overlap with either. Evenly spread blocks give the bus time for the others. The
//   head may come before the blocks: its update is the last, and forward ends with it.
// - State that does not fit in RAM is either the same share of each unit's state, or the state of
//   the last elements. In the first case the drives are busy throughout the update; in the second
//   they work while forward runs through the other elements. RAM holds as much as it can: a byte of
//   state on NVMe costs two bytes of traffic a step.
// - Parameters go to NVMe only after all state has left RAM: a byte of parameters costs three.
//   Frozen parameters go first: they are never written, and little state belongs to them.
// - The inputs of the first units go to the host, because they are needed last. Some of them,
//   spread evenly, continue from there to the drives, which thus have all passes to transfer them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "offload/planner/placement.h"

namespace sluice::offload {

enum class Spread : std::uint8_t { kFirst, kEven, kLast };

struct PlacementKnobs {
  std::uint64_t gpu_elements = 0;
  bool head_first = false;  // before the blocks
  bool gpu_even = false;    // blocks spread evenly, not the first ones
  bool nvme_last = false;   // the last elements, not a share of each unit
  int resident = 0;         // in addition to the ends and the units with state on the GPU
  int kept = 0;             // units whose activations are kept
  int offloaded = 0;        // units whose inputs go to the host
  int spilled = 0;  // units among those whose inputs go to the drives; without a GPU: among all
  Spread resident_spread = Spread::kEven;
  Spread kept_spread = Spread::kEven;

  bool operator==(const PlacementKnobs&) const = default;
};

class PlacementSpace {
 public:
  explicit PlacementSpace(const PlannerInput& input);

  // Bounds of the knobs; if a rule fixes a knob, both bounds are equal.
  std::uint64_t min_gpu_elements() const { return min_gpu_elements_; }
  std::uint64_t max_gpu_elements() const { return max_gpu_elements_; }
  int units() const { return static_cast<int>(input_.units.size()); }
  int min_kept() const { return min_kept_; }
  int max_kept() const { return max_kept_; }
  int max_resident() const { return max_resident_; }
  int min_offloaded(int kept) const;
  int max_offloaded(int kept) const;
  int min_spilled(int offloaded) const;
  int max_spilled(int offloaded) const;
  // The values tried for gpu_elements, in ascending order: the ends of units, and values in between
  // if there are few units.
  const std::vector<std::uint64_t>& gpu_steps() const { return gpu_steps_; }

  // The placement may exceed the budget. Knobs are clamped to their bounds.
  std::vector<UnitPlacement> places(const PlacementKnobs& knobs) const;
  // Sets `resident` to the most that the GPU's budget allows; false: not even 0 fits.
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
  std::uint64_t min_gpu_elements_ = 0;
  std::uint64_t max_gpu_elements_ = 0;
  int max_resident_ = 0;
  int min_kept_ = 0;
  int max_kept_ = 0;
};

}  // namespace sluice::offload
