// StepRecords: the state on NVMe as tasks of a step. Each record is read into a buffer, computed by
// the CPU and written from there. Reads run ahead as far as there are buffers.
#pragma once

#include <cstddef>
#include <vector>

#include "offload/planner/step_inputs.h"
#include "offload/planner/step_tasks.h"

namespace sluice::offload {

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
