// StepTasks: the schedule of a step's tasks, each with a kind and a unit. The kind decides the
// stream, and whether a task is outside (FluidSchedule).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "offload/planner/fluid_schedule.h"
#include "offload/planner/step_model.h"

namespace sluice::offload {

enum class StepTask : std::uint8_t {
  kForward,
  kHead,
  kBackward,
  kGpuAdamw,
  kCpuAdamw,
  kParamsIn,
  kInputIn,
  kGradientOut,
  kSumOut,  // gradient sums, between waves
  kSumIn,
  kInputOut,
  kInputWrite,  // a unit's input, to the drives
  kInputRead,
  kGradientWrite,  // a unit's gradient sums, to the drives
  kGradientRead,
  kStateRead,
  kStateWrite,
  kParamRead,
  kParamWrite,
  kUpdated,     // a unit is updated on the host
  kShardAdamw,  // this and the next: with several ranks; on the GPU, next to compute
  kGather,      // a unit's parameters
  kReduce,      // a unit's gradient sum
  kAddSums,     // adds the sums that the ranks have exchanged
  kNorm,
};

// The words before the unit's name where a task is displayed: "read state ".
const char* words(StepTask kind);

class StepTasks {
 public:
  using After = std::array<TaskId, FluidSchedule::kMaxAfter>;

  // drives_outside: reads and writes on the drives are outside tasks.
  StepTasks(std::size_t expected_tasks, bool drives_outside)
      : schedule_(expected_tasks), drives_outside_(drives_outside) {}

  TaskId add(StepTask kind, int unit, double work, const After& after);
  // The latest compute task of the GPU.
  TaskId last_compute() const { return last_compute_; }
  bool drives_outside() const { return drives_outside_; }

  FluidSchedule& schedule() { return schedule_; }
  const FluidSchedule& schedule() const { return schedule_; }
  StepTask kind(TaskId id) const { return labels_[static_cast<std::size_t>(id)].kind; }
  int unit_of(TaskId id) const { return labels_[static_cast<std::size_t>(id)].unit; }

  // Counts the work of tasks added from now on, by resource.
  void begin_to_count() { counting_ = true; }
  // How often the following tasks happen.
  void count_times(int times) { times_ = times; }
  void count(Resource resource, double work);
  const std::array<double, kResources>& work() const { return work_; }
  // Counts bytes received from other ranks.
  void count_received(double bytes) {
    if (counting_) received_bytes_ += times_ * bytes;
  }
  double received_bytes() const { return received_bytes_; }

 private:
  struct Label {
    StepTask kind = StepTask::kNorm;
    int unit = 0;
  };

  FluidSchedule schedule_;
  const bool drives_outside_;
  std::vector<Label> labels_;
  TaskId last_compute_ = kNoTask;
  bool counting_ = false;
  int times_ = 1;
  std::array<double, kResources> work_{};
  double received_bytes_ = 0;
};

}  // namespace sluice::offload
