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
            const MachineSpeeds& speeds, const StepModelOptions& options);

  FluidSchedule& schedule() { return schedule_; }

  // Of the step that is reported. `first`: the norm that it begins with, kNoTask for time 0.
  TaskId first() const { return first_; }
  TaskId head() const { return head_; }
  TaskId last() const { return last_; }
  // By unit: the host update that its forward waits for, and its first task on the GPU.
  TaskId gate(int unit) const;
  const std::vector<TaskId>& gpu_begins() const { return gpu_begins_; }
  // Work of one step, by resource.
  const std::array<double, kResources>& work() const { return work_; }

  std::string name(TaskId id) const;

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

  // Records of one step: whose, and how many elements.
  struct Record {
    int unit;
    double elements;
  };
  std::vector<Record> records_;
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

  TaskId first_ = kNoTask;
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
