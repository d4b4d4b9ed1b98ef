// SpilledInputs: which units' inputs go to the drives, and which piece of the spill is whose. And
// the store of inputs that uses it where the host computes.
//
// Threads: the one that trains.
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
  SpilledInputs() = default;  // no unit's
  // The spill was made for the same plan, and must outlive it. Null where no unit's go there.
  SpilledInputs(const ActivationPlan& plan, offload::InputSpill* spill);

  bool has(int unit) const { return first_of(unit) >= 0; }
  int piece(int unit, std::size_t micro_batch) const {
    return first_of(unit) + static_cast<int>(micro_batch);
  }
  offload::InputSpill& spill() const { return *spill_; }

  // All of a wave's are written, or on their way: they will be taken unit by unit from the last, in
  // the order of micro-batches.
  void turn_back(std::size_t micro_batches);

 private:
  static constexpr int kNone = -1;
  int first_of(int unit) const {
    const auto index = static_cast<std::size_t>(unit);
    return index < first_.size() ? first_[index] : kNone;
  }

  offload::InputSpill* spill_ = nullptr;
  std::vector<int> first_;  // piece, by unit
  std::vector<int> back_;   // what is expected
};

// Inputs of units whose inputs the plan spills go to the drives, others stay as they are. For host
// tensors. Throws TrainError where a transfer fails.
std::unique_ptr<UnitInputStore> make_spilling_unit_input_store(const ModelLayout& model,
                                                               SpilledInputs spilled);

}  // namespace sluice::engine
