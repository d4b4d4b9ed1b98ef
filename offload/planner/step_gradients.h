// StepGradients: the tasks for sums of gradients that are stored on the drives. A unit's sums are
// in one of a few buffers while backward adds to them, and are then written to the drives. They are
// read back for the next wave and for the unit's update, unless a buffer still holds them. If the
// sums are in RAM there are no such tasks.
//
// Memory: inputs and tasks must outlive it.
#pragma once

#include <vector>

#include "offload/planner/step_inputs.h"
#include "offload/planner/step_tasks.h"

namespace sluice::offload {

class StepGradients {
 public:
  StepGradients(const StepInputs& inputs, StepTasks& tasks);

  bool are_on_drives() const { return inputs_.options.gradient_buffers > 0; }
  // open() returns when backward may add to the unit's sums; the first wave of a step creates them.
  // close(): the last addition is done with task `computed`.
  TaskId open(int unit, bool is_first);
  void close(int unit, TaskId computed);
  // bring() returns when the unit's gradient is available for its update, which begins after
  // `norm`; used() records that the update is done.
  TaskId bring(int unit, TaskId norm);
  void used(int unit, TaskId updated) { buffer_of(unit).freed = updated; }

 private:
  struct Buffer {
    int unit = -1;
    TaskId freed = kNoTask;  // free once this task is done
  };
  struct Taken {
    bool is_there = false;  // the buffer still holds the unit's sums
    TaskId free = kNoTask;  // else: when the buffer is free
  };

  double bytes(int unit) const;
  Taken take(int unit);
  Buffer& buffer_of(int unit);
  TaskId written(int unit) const { return written_[static_cast<std::size_t>(unit)]; }

  const StepInputs& inputs_;
  StepTasks& tasks_;
  std::vector<TaskId> written_;  // by unit, the latest
  std::vector<Buffer> buffers_;  // the most recently used one is last
};

}  // namespace sluice::offload
