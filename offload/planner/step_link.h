// StepLink: the exchanges between ranks in a step, as tasks, in the order in which a run enqueues
// them. With GPUs, all exchanges and the updates of shards on the GPU run in order on one stream
// next to the compute stream (engine/step/cuda_rank_link.h). AdamW and the addition of sums on that
// stream share the GPU with the compute stream. Without GPUs, the computing thread waits for each
// exchange.
//
// Memory: refers to the caller's inputs and tasks, which must outlive it.
#pragma once

#include <vector>

#include "offload/planner/step_inputs.h"
#include "offload/planner/step_tasks.h"

namespace sluice::offload {

class StepLink {
 public:
  StepLink(const StepInputs& inputs, StepTasks& tasks);

  bool is_used() const { return inputs_.options.ranks.world > 1; }
  bool overlaps_compute() const { return is_used() && inputs_.has_bus(); }
  bool blocks() const { return is_used() && !inputs_.has_bus(); }
  TaskId last() const { return last_; }

  // Updates the part of the unit's shard that is on the GPU, before it is gathered.
  void update(int unit, TaskId gate);
  // Gathers all ranks' shards of the trained parameters, once this rank's shard is `ready` and the
  // destination is `free`. kNoTask: the unit has no trained parameters.
  TaskId gather(int unit, TaskId ready, TaskId free);
  TaskId gather_frozen(int unit, TaskId ready, TaskId free);  // the same for frozen parameters
  // The unit has other trained parameters than hosts have copies of.
  void change(int unit);
  // Exchanges the ranks' sums, one for each unit that adds to them, once the last is `computed`.
  // Then adds and casts them, once there is a place for the result (`stage`).
  TaskId reduce(int unit, TaskId computed, TaskId stage);

 private:
  TaskId gather_bytes(int unit, double bytes, const Topology& ranks, TaskId ready, TaskId free);
  Topology ranks_with(bool has_copy) const;
  void add(StepTask kind, int unit, double work, TaskId first, TaskId second);

  const StepInputs& inputs_;
  StepTasks& tasks_;
  std::vector<bool> copied_;  // by unit: hosts have copies
  std::vector<int> sums_;     // by unit: its own sum, and one for each unit that borrows from it
  TaskId last_ = kNoTask;
};

}  // namespace sluice::offload
