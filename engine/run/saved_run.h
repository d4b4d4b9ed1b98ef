// SavedRun: a run that can be checkpointed (run_checkpoints.h), whichever code computes its passes.
//
// Threads: one; callbacks may come on any thread of the optimizer's executor.
#pragma once

#include <cstdint>
#include <string>

#include "aio/executor.h"
#include "aio/result.h"
#include "engine/budget/memory_plan.h"
#include "engine/checkpoint/checkpoint_state.h"
#include "engine/runtime/run_state.h"

namespace sluice::engine {

// Whether a save leaves the state that is on NVMe in its store: run.checkpoint_in_place.
inline bool saves_in_place(const MemoryPlan& plan) {
  return plan.state.optimizer.in_place && plan.state.uses(offload::Tier::kNvme);
}

// What the first rank of several calls to save while training continues (joint_copy_save.h). The
// other ranks do the same.
class LedCopySave {
 public:
  virtual ~LedCopySave() = default;
  virtual Status make_copies() = 0;  // takes the memory for the copies; call it once
  virtual Status copy() = 0;
  virtual Status begin(const std::string& folder) = 0;
  // Whether all ranks were done when the last step ended.
  virtual bool is_written() const = 0;
  virtual Result<std::uint64_t> end(const CheckpointState& state) = 0;

 protected:
  LedCopySave() = default;
  LedCopySave(const LedCopySave&) = default;
  LedCopySave& operator=(const LedCopySave&) = default;
};

class SavedRun {
 public:
  virtual ~SavedRun() = default;

  // Call it after the last step. Visits ranges in the order of the model's parameters; with
  // kAnyOrder several ranges at once, in any order. Callbacks run on any thread of executor(). With
  // several ranks, ranges come one at a time, in order, on the calling thread.
  virtual Status take_state(const TakeState& take, offload::Calls calls) = 0;
  Status take_state(const TakeState& take) { return take_state(take, offload::Calls::kInOrder); }
  // The rest of a checkpoint, without scores.
  virtual CheckpointState checkpoint_state() const = 0;
  // For several ranks, which all write at the same time: saves a checkpoint in `folder`, which is
  // replaced (joint_save.h). Returns the bytes of its files.
  virtual Result<std::uint64_t> save_together(const std::string& folder,
                                              const CheckpointState& state) = 0;
  // The same while training continues; null: one rank, or saves of several ranks stop training.
  virtual LedCopySave* copy_save() { return nullptr; }
  bool has_other_ranks() const { return plan().ranks.world > 1; }
  bool saves_in_place() const { return engine::saves_in_place(plan()); }
  // This rank's state after the last step, with all updates applied and written.
  virtual RunState settled_state() = 0;

  virtual aio::Executor& executor() = 0;  // busy during a step, free between steps
  virtual const MemoryPlan& plan() const = 0;
  virtual const ModelLayout& model() const = 0;

 protected:
  SavedRun() = default;
  SavedRun(const SavedRun&) = default;
  SavedRun& operator=(const SavedRun&) = default;
};

}  // namespace sluice::engine
