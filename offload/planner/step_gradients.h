// StepGradients: tasks of sums of gradients that lie on the drives. A unit's are in one of a few
// buffers while backward adds to them, go to the drives behind that, and come back for the next
// wave, and for the unit's update, unless they are in a buffer still. Where they are in RAM there
// are no such tasks.
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
  // When backward may add to the unit's sums, which the first wave of a step makes; what it adds
  // last is done with `computed`.
  TaskId open(int unit, bool is_first);
  void close(int unit, TaskId computed);
  // When the unit's gradient is there for its update, which begins behind `norm`; and that it was.
  TaskId bring(int unit, TaskId norm);
  void used(int unit, TaskId updated) { buffer_of(unit).freed = updated; }

 private:
  struct Buffer {
    int unit = -1;
    TaskId freed = kNoTask;  // by this
  };
  struct Taken {
    bool is_there = false;  // what the unit had in it
    TaskId free = kNoTask;  // else: when it is no longer another's
  };

  double bytes(int unit) const;
  Taken take(int unit);
  Buffer& buffer_of(int unit);
  TaskId written(int unit) const { return written_[static_cast<std::size_t>(unit)]; }

  const StepInputs& inputs_;
  StepTasks& tasks_;
  std::vector<TaskId> written_;  // by unit, the latest
  std::vector<Buffer> buffers_;  // the one that was used last at the end
};

}  // namespace sluice::offload
