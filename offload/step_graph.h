// StepGraph: a training step as tasks on streams, in the trainer's order: what predict_step() runs.
//
// Which slot a streamed unit gets, and so what stays on the GPU from forward to backward, follows
// from the order alone (the one that was used longest ago) and is decided while building.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "offload/fluid_schedule.h"
#include "offload/step_model.h"

namespace sluice::offload {

struct StepGraphOptions {
  int steps = 0;  // 0: as many as it takes to a steady state
  // Reads and writes on the drives are tasks outside (FluidSchedule): those of state are told by
  // records(), and no task waits for its writes.
  bool drives_outside = false;
};

class StepGraph {
 public:
  enum class Kind : std::uint8_t {
    kForward,
    kHead,
    kBackward,
    kGpuAdamw,
    kCpuAdamw,
    kParamsIn,
    kBoundaryIn,
    kGradientOut,
    kBoundaryOut,
    kStateRead,
    kStateWrite,
    kParamRead,
    kParamWrite,
    kUpdated,  // of a unit, on the host
    kNorm,
  };

  StepGraph(const std::vector<UnitCost>& units, const std::vector<UnitPlace>& places,
            const MachineSpeeds& speeds, const StepModelOptions& options,
            const StepGraphOptions& graph = {});

  FluidSchedule& schedule() { return schedule_; }

  // Of one step. `first`: the norm that it begins with, kNoTask for time 0. By unit: the host
  // update that its forward waits for, and its first task on the GPU.
  struct Marks {
    TaskId first = kNoTask;
    TaskId head = kNoTask;
    TaskId last = kNoTask;
    std::vector<TaskId> gates;
    std::vector<TaskId> gpu_begins;
  };
  const std::vector<Marks>& steps() const { return steps_; }
  const Marks& reported() const { return steps_.back(); }
  // Once it has run: what the GPU stood still for because a unit's host update was not done.
  double exposed_s(const Marks& step) const;
  double begin_s(const Marks& step) const;
  // Work of one step, by resource.
  const std::array<double, kResources>& work() const { return work_; }

  // Of all steps, in their order: a part of a unit's state that is read, computed and written.
  struct RecordTasks {
    std::size_t record = 0;  // of a step
    TaskId read = kNoTask;
    TaskId computed = kNoTask;
  };
  const std::vector<RecordTasks>& records() const { return record_tasks_; }
  struct Record {
    int unit;
    double elements;
  };
  const std::vector<Record>& records_of_a_step() const { return records_; }

  std::string name(TaskId id) const;
  Kind kind(TaskId id) const { return labels_[static_cast<std::size_t>(id)].kind; }
  int unit_of(TaskId id) const { return labels_[static_cast<std::size_t>(id)].unit; }

 private:
  struct Label {
    Kind kind = Kind::kNorm;
    int unit = 0;
  };
  struct Slot {
    int unit = -1;
    TaskId used = kNoTask;
    std::uint64_t last_use = 0;
  };
  // Of a buffer for parameters that are on NVMe: free again when both are done.
  struct CacheUse {
    int unit = -1;
    TaskId to_gpu = kNoTask;
    TaskId written = kNoTask;
  };
  using After = std::array<TaskId, FluidSchedule::kMaxAfter>;

  int count() const { return static_cast<int>(units_.size()); }
  const UnitCost& unit(int index) const { return units_[static_cast<std::size_t>(index)]; }
  const UnitPlace& place(int index) const { return places_[static_cast<std::size_t>(index)]; }
  double host_elements(int index) const;
  bool has_bus() const { return speeds_.bus.in_bytes_per_s > 0; }

  TaskId add(Kind kind, int unit, double work, const After& after);
  void plan_ring();
  void plan_records();
  void add_step();
  void add_update(int unit);
  void add_records(int unit, TaskId params);
  void add_state_read(std::size_t record);
  void read_ahead();
  void add_forward(int unit);
  void add_head();
  TaskId refresh(int unit, TaskId copied);
  TaskId add_gpu_adamw(int unit);
  void add_backward(int unit);
  void add_gradient(int unit, TaskId after);
  void add_norm();
  TaskId gate(int unit) const;
  bool is_outside(Kind kind) const;
  TaskId stage_free() const;
  TaskId bring(int unit, std::vector<int>& in_use);
  Slot& slot_for(const std::vector<int>& in_use);
  TaskId in_host_memory(int unit);
  CacheUse& last_use(int unit);
  void used(const std::vector<int>& in_use, TaskId by);

  const std::vector<UnitCost>& units_;
  const std::vector<UnitPlace>& places_;
  const MachineSpeeds& speeds_;
  const StepModelOptions& options_;
  FluidSchedule schedule_;
  std::vector<Label> labels_;

  const StepGraphOptions graph_;
  std::vector<Record> records_;  // of one step
  std::vector<RecordTasks> record_tasks_;
  std::vector<std::size_t> first_record_;  // by unit, and their number
  std::size_t buffers_ = 2;
  std::vector<TaskId> reads_;  // of all steps, one behind the other, like the next
  std::vector<TaskId> writes_;
  std::vector<Slot> slots_;
  std::vector<CacheUse> cache_;
  std::uint64_t uses_ = 0;
  std::vector<int> ring_leaver_;    // by unit: who leaves the ring's place that it takes, or -1
  std::vector<int> ring_follower_;  // by unit: who came before it to the place, or -1
  bool counting_ = false;

  std::vector<Marks> steps_;
  TaskId head_ = kNoTask;
  TaskId last_ = kNoTask;  // also the norm that the next step begins with
  TaskId last_compute_ = kNoTask;
  std::vector<TaskId> updated_;
  std::vector<TaskId> gpu_begins_;
  std::vector<TaskId> boundaries_out_;
  std::vector<TaskId> backwards_;  // by unit
  std::vector<TaskId> gradients_;  // in their order, of the step being built
  std::array<double, kResources> work_{};
};

}  // namespace sluice::offload
