// StepLink: what several ranks exchange in a step, as tasks, in the order in which a run enqueues
// them. With GPUs all of it, and what updates shards there, is on one stream beside the one that
// computes (engine/step/cuda_rank_link.h), in order; AdamW and the addition of sums on it take of
// what the GPU computes with. Without, whoever computes waits for each.
//
// Memory: the caller's inputs and tasks, which outlive it.
#pragma once

#include <vector>

#include "offload/planner/step_inputs.h"
#include "offload/planner/step_tasks.h"

namespace sluice::offload {

class StepLink {
 public:
  StepLink(const StepInputs& inputs, StepTasks& tasks);

  bool is_used() const { return !inputs_.options.ranks.is_alone(); }
  bool is_beside_compute() const { return is_used() && inputs_.has_bus(); }
  bool blocks() const { return is_used() && !inputs_.has_bus(); }
  TaskId last() const { return last_; }

  // Of the unit's shard, what is on the GPU: before it is gathered.
  void update(int unit, TaskId gate);
  // Of all ranks' shards of what is trained, once this one's is `ready` and its place is `free`.
  // kNoTask: the unit has nothing of it.
  TaskId gather(int unit, TaskId ready, TaskId free);
  TaskId gather_frozen(int unit, TaskId ready, TaskId free);  // likewise, of what is not
  // Of the ranks' sums, as often as units add to them, once the last is `computed`; their addition
  // and the cast, once there is a place for its result (`stage`).
  TaskId reduce(int unit, TaskId computed, TaskId stage);

 private:
  TaskId gather_bytes(int unit, double bytes, TaskId ready, TaskId free);
  void add(StepTask kind, int unit, double work, TaskId first, TaskId second);

  const StepInputs& inputs_;
  StepTasks& tasks_;
  std::vector<int> sums_;  // by unit: its own, and one of each unit that borrows of it
  TaskId last_ = kNoTask;
};

}  // namespace sluice::offload
