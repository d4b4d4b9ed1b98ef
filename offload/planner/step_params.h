// StepParams: the movement of the units' 16-bit parameters as tasks of a step. Parameters on NVMe
// are read into buffers in host memory; all are copied over the bus into slots on the GPU. Buffers
// and slots are reused in least recently used order, so what they hold follows from the order of
// the calls. With several ranks the host has a shard, and the unit is gathered in the slot.
#pragma once

#include <cstdint>
#include <vector>

#include "offload/planner/step_inputs.h"
#include "offload/planner/step_link.h"
#include "offload/planner/step_tasks.h"

namespace sluice::offload {

class StepParams {
 public:
  // All arguments must outlive it.
  StepParams(const StepInputs& inputs, StepTasks& tasks, StepLink& link);

  // Slots still hold what the previous step left in them.
  void begin_step();

  // Reads parameters on NVMe into host memory. kNoTask: they are already there.
  TaskId read(int unit);
  // Writes the buffer of the latest read back to NVMe, once the update is `done`.
  void write(int unit, TaskId done);

  // Copies the unit onto the GPU, once `gate` is done, and adds it to the units in use, which keep
  // their slots. kNoTask: it is already there.
  TaskId bring(int unit, TaskId gate, std::vector<int>& in_use);
  // With several ranks and GPUs: prefetches a unit that will be brought soon.
  void prefetch(int unit, TaskId gate);
  // Copies what the host has updated, for a resident unit and for trained parameters of a unit with
  // frozen ones. `brought` is what bring() returned; it is returned if there is nothing to copy.
  TaskId refresh(int unit, TaskId gate, TaskId brought);
  // Frees the slots of these units for others after task `by`.
  void used(const std::vector<int>& in_use, TaskId by);

 private:
  struct Slot {
    int unit = -1;
    TaskId used = kNoTask;
    std::uint64_t last_use = 0;
    TaskId gathered = kNoTask;  // its unit is gathered; with several ranks
    int of = kBlocks;           // the group of units that share it
  };
  static constexpr int kBlocks = -1;
  // A buffer for parameters on NVMe: free again when both tasks are done.
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
