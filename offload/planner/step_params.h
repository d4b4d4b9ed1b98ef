// StepParams: the movement of the units' 16-bit parameters as tasks of a step: from NVMe, where
// they lie there, into buffers in host memory, and over the bus into slots on the GPU. Buffer and
// slot are the least recently used ones, so what is still there follows from the order of the
// calls. With several ranks the host has a shard, and the unit is gathered in the slot.
#pragma once

#include <cstdint>
#include <vector>

#include "offload/planner/step_inputs.h"
#include "offload/planner/step_link.h"
#include "offload/planner/step_tasks.h"

namespace sluice::offload {

class StepParams {
 public:
  // All must outlive it.
  StepParams(const StepInputs& inputs, StepTasks& tasks, StepLink& link);

  // What the slots hold is from the previous step.
  void begin_step();

  // Into host memory, for a unit whose parameters are on NVMe. kNoTask: they are already there.
  TaskId read(int unit);
  // Out of the buffer of the latest read, back to NVMe, once the update is `done`.
  void write(int unit, TaskId done);

  // Onto the GPU, once `gate` is done; the unit joins those in use, which keep their slots.
  // kNoTask: they are already there.
  TaskId bring(int unit, TaskId gate, std::vector<int>& in_use);
  // Of several ranks with GPUs: a unit that will be brought soon.
  void prefetch(int unit, TaskId gate);
  // For a resident unit, and for what is trained beside frozen parameters, copies what the host has
  // updated. `brought` is what bring() returned, and is itself returned where there is nothing to
  // copy.
  TaskId refresh(int unit, TaskId gate, TaskId brought);
  // Their slots are free for others after the task.
  void used(const std::vector<int>& in_use, TaskId by);

 private:
  struct Slot {
    int unit = -1;
    TaskId used = kNoTask;
    std::uint64_t last_use = 0;
    TaskId gathered = kNoTask;  // its unit, of several ranks
    int of = kBlocks;           // which units take turns in it
  };
  static constexpr int kBlocks = -1;
  // A buffer for parameters that are on NVMe: free again when both are done.
  struct CacheUse {
    int unit = -1;
    TaskId to_gpu = kNoTask;
    TaskId written = kNoTask;
  };

  Slot& slot_for(const std::vector<int>& in_use, int of);
  int turns_of(int unit) const;
  TaskId gather(int unit, TaskId gate, const std::vector<int>& in_use);
  bool gathers_frozen(int unit) const;
  TaskId copy_in(int unit, TaskId gate, const std::vector<int>& in_use);
  CacheUse& last_use(int unit);

  const StepInputs& inputs_;
  StepTasks& tasks_;
  StepLink& link_;
  std::vector<Slot> slots_;
  std::vector<CacheUse> cache_;
  std::uint64_t uses_ = 0;
};

}  // namespace sluice::offload
