// What a step moves between tiers, as tasks: parameters (StepParams), gradients on the drives
// (StepGradients) and the state's records on the drives (StepRecords).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "offload/planner/step_inputs.h"
#include "offload/planner/step_link.h"
#include "offload/planner/step_tasks.h"

namespace sluice::offload {

// StepParams: the movement of the units' 16-bit parameters as tasks of a step. Parameters on NVMe
// are read into buffers in host memory; all are copied over the bus into slots on the GPU. Buffers
// and slots are reused in least recently used order, so what they hold follows from the order of
// the calls. With several ranks the host has a shard, and the unit is gathered in the slot.
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

// StepGradients: the tasks for gradients that are stored on the drives. Without a bus, a unit's
// sums are in one of a few buffers while backward adds to them, and are then written. From
// a GPU its sums or its 16-bit gradient are copied into such a buffer. They are read back for the
// next wave and for the unit's update, unless a buffer still holds them. If gradients are in RAM
// there are no such tasks.
//
// Memory: inputs and tasks must outlive it.
class StepGradients {
 public:
  StepGradients(const StepInputs& inputs, StepTasks& tasks);

  bool are_on_drives() const { return inputs_.options.gradient_buffers > 0; }
  // Whether the unit's gradient is on the drives. One that the GPU updates never leaves the GPU.
  bool has(int unit) const {
    return are_on_drives() && (!inputs_.has_bus() || inputs_.host_elements(unit) > 0);
  }
  // open() returns when the unit has a buffer with its sums; a first one has none to read. close():
  // the buffer is complete with task `computed`, and is written.
  TaskId open(int unit, bool is_first);
  void close(int unit, TaskId computed);
  // bring() returns when the unit's gradient is available for its update or for a copy to the GPU,
  // which begins after `before`; used() records that this is done.
  TaskId bring(int unit, TaskId before);
  void used(int unit, TaskId done);

 private:
  struct Buffer {
    int unit = -1;
    TaskId freed = kNoTask;  // free once this task is done
    bool is_read = false;    // since it was written
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

// StepRecords: the state on NVMe as tasks of a step. Each record is read into a buffer, computed by
// the CPU and written from there. Reads run ahead as far as there are buffers.
class StepRecords {
 public:
  struct Record {
    int unit;
    double elements;
  };
  // The tasks of one record in one step.
  struct Tasks {
    std::size_t record = 0;
    TaskId read = kNoTask;
    TaskId computed = kNoTask;
  };

  // Both arguments must outlive it.
  StepRecords(const StepInputs& inputs, StepTasks& tasks);

  // Adds the reads for this step's update after its head. Reads that have a buffer begin at once.
  void read_ahead(TaskId head);
  // Adds the update of the unit's records, once the step's norm is done and the unit's parameters
  // are in host memory.
  void add_update(int unit, TaskId norm, TaskId params);

  const std::vector<Record>& of_a_step() const { return records_; }
  // All steps, in order.
  const std::vector<Tasks>& tasks() const { return record_tasks_; }

 private:
  void add_read(std::size_t record);

  const StepInputs& inputs_;
  StepTasks& tasks_;
  std::vector<Record> records_;
  std::vector<std::size_t> first_record_;  // by unit, then the total
  std::size_t buffers_ = 2;
  TaskId head_ = kNoTask;
  std::vector<TaskId> reads_;  // this and the next: of all steps, in order
  std::vector<TaskId> writes_;
  std::vector<Tasks> record_tasks_;
};

}  // namespace sluice::offload
