// SpilledInputs: which units' inputs are spilled to the drives, and which piece of the spill each
// input uses. Also the input store that uses it if the host computes.
//
// Threads: the training thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/budget/activation_plan.h"
#include "engine/model/model_layout.h"
#include "engine/step/unit_input_store.h"
#include "offload/inputs/input_spill.h"

namespace sluice::engine {

class SpilledInputs {
 public:
  SpilledInputs() = default;  // spills nothing
  // The spill must be made for the same plan, and must outlive it. Null if no unit is spilled.
  SpilledInputs(const ActivationPlan& plan, offload::InputSpill* spill);

  bool has(int unit) const { return first_of(unit) >= 0; }
  int piece(int unit, std::size_t micro_batch) const {
    return first_of(unit) + static_cast<int>(micro_batch);
  }
  offload::InputSpill& spill() const { return *spill_; }

  // All of a wave's inputs are written, or being written. They will be taken from the last unit to
  // the first, by ascending micro-batch.
  void turn_back(std::size_t micro_batches);

 private:
  static constexpr int kNone = -1;
  int first_of(int unit) const {
    const auto index = static_cast<std::size_t>(unit);
    return index < first_.size() ? first_[index] : kNone;
  }

  offload::InputSpill* spill_ = nullptr;
  std::vector<int> first_;  // first piece, by unit
  std::vector<int> back_;   // pieces in the order in which backward takes them
};

// Spills the inputs of the units that the plan selects; others stay as they are. For host tensors.
// Throws TrainError if a transfer fails.
std::unique_ptr<UnitInputStore> make_spilling_unit_input_store(const ModelLayout& model,
                                                               SpilledInputs spilled);

}  // namespace sluice::engine
