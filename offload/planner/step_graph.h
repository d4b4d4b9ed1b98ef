// StepGraph: a training step as tasks on streams, in the order of its program: what predict_step()
// runs.
//
// Which slot a streamed unit gets, and so what stays on the GPU from forward to backward, follows
// from the order alone (the least recently used one) and is decided while building.
//
// Memory: what it is built from must outlive it.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "offload/planner/fluid_schedule.h"
#include "offload/planner/step_gradients.h"
#include "offload/planner/step_inputs.h"
#include "offload/planner/step_link.h"
#include "offload/planner/step_model.h"
#include "offload/planner/step_params.h"
#include "offload/planner/step_records.h"
#include "offload/planner/step_tasks.h"
#include "offload/step_program.h"

namespace sluice::offload {

struct StepGraphOptions {
  int steps = 0;  // 0: as many as it takes to a steady state
  // Reads and writes on the drives are tasks outside (FluidSchedule): those of state are listed by
  // records(), and no task waits for its writes.
  bool drives_outside = false;
  // Else of a step with more than four waves the first, the last and two between, of which the
  // second stands for all that are left out: the first of them finds a bus that had time to spare.
  bool all_waves = false;
};

class StepGraph {
 public:
  // The first wave waits for updates, the last one sends gradients; those between are alike.
  static constexpr int kModelledWaves = 4;

  using Kind = StepTask;
  using Record = StepRecords::Record;
  using RecordTasks = StepRecords::Tasks;

  StepGraph(const std::vector<UnitCost>& units, const std::vector<UnitPlacement>& places,
            const MachineSpeeds& speeds, const StepModelOptions& options,
            const StepGraphOptions& graph = {});
  StepGraph(const StepGraph&) = delete;
  StepGraph& operator=(const StepGraph&) = delete;

  FluidSchedule& schedule() { return tasks_.schedule(); }

  // Of one step. `first`: the norm that it begins with, kNoTask for time 0. By unit: the host
  // update that its forward waits for, and its first task on the GPU.
  struct Marks {
    TaskId first = kNoTask;
    TaskId head = kNoTask;          // of the first wave
    std::vector<TaskId> heads;      // of each wave
    std::vector<TaskId> backwards;  // where a wave's backward ends
    TaskId last = kNoTask;
    std::vector<TaskId> gates;
    std::vector<TaskId> gpu_begins;
  };
  const std::vector<Marks>& steps() const { return steps_; }
  const Marks& reported() const { return steps_.back(); }
  // Once it has run: how long the GPU stood still because a unit's host update was not done.
  double exposed_s(const Marks& step) const;
  double begin_s(const Marks& step) const;
  double forward_s(const Marks& step) const;  // of all waves
  double end_s(const Marks& step) const;
  // The wave that stands for several; empty where each stands for itself.
  FluidSchedule::Repeated repeated(const Marks& step) const;
  // Work of one step, of all its waves, by resource.
  const std::array<double, kResources>& work() const { return tasks_.work(); }
  double received_bytes() const { return tasks_.received_bytes(); }  // likewise, from other ranks

  // Of all steps, in their order: a part of a unit's state that is read, computed and written.
  const std::vector<RecordTasks>& records() const { return records_.tasks(); }
  const std::vector<Record>& records_of_a_step() const { return records_.of_a_step(); }

  std::string name(TaskId id) const;
  Kind kind(TaskId id) const { return tasks_.kind(id); }
  int unit_of(TaskId id) const { return tasks_.unit_of(id); }

 private:
  static Waves modelled(const Waves& waves, const StepGraphOptions& graph);
  double middle_s(const Marks& step) const;
  void plan_ring();
  void add_step(bool mark_units);
  void add(const StepOperation& it);
  void fetch(int unit);
  void prefetch_behind(std::size_t position);
  int units_ahead() const;
  void add_update(int unit);
  void add_forward(int unit, int wave);
  void add_head(int unit, int wave);
  TaskId add_gpu_adamw(int unit);
  double unpack_s() const;
  void add_backward(int unit, int wave);
  void add_gradient(int unit);
  void add_norm();
  void used_by(TaskId task);
  TaskId own_ready() const;
  TaskId sum_slot_free() const;
  TaskId gate(int unit) const;
  TaskId stage_free() const;
  bool sum_moves(int unit) const;
  double share(int wave) const;
  double input_bytes(int unit, int wave) const;
  bool is_spilled(int unit) const;
  TaskId spill_buffer_free() const;
  void send_input(int unit, int wave, TaskId before);
  TaskId bring_input(int unit, int wave);
  double sum_bytes(int unit, int wave) const;
  void add_kept_sum(int unit, int wave);
  void add_fetched_sum(int unit, int wave);
  TaskId sum_ready(int unit, int wave);

  // For the next task that computes.
  struct Fetched {
    std::vector<int> units;   // its own first
    TaskId own = kNoTask;     // there when this is done; kNoTask: already there
    TaskId lender = kNoTask;  // likewise, of the last one that it borrows from
  };

  const StepInputs inputs_;
  const Waves waves_;       // that are tasks
  const int not_modelled_;  // waves, for which the middle one stands
  const StepProgram program_;
  StepTasks tasks_;
  StepLink link_;
  StepRecords records_;
  StepParams params_;
  StepGradients sums_;
  std::vector<int> ring_leaver_;    // by unit: whose place in the ring it takes, or -1
  std::vector<int> ring_follower_;  // by unit: which unit had the place before it, or -1

  std::vector<Marks> steps_;
  Fetched fetched_;
  TaskId head_ = kNoTask;
  TaskId computed_ = kNoTask;  // whose gradient is sent next
  TaskId last_ = kNoTask;      // also the norm that the next step begins with
  std::vector<TaskId> updated_;
  std::vector<TaskId> gpu_begins_;
  std::vector<TaskId> inputs_out_;      // by unit: off the GPU
  std::vector<TaskId> inputs_written_;  // by unit, of those that are spilled
  std::vector<TaskId> spills_;          // tasks that freed the buffers they pass, in their order
  std::vector<TaskId> backwards_;       // by unit
  std::vector<TaskId> gradients_;       // in their order, of the step being built
  std::vector<TaskId> sums_out_;        // by unit, to the host; of the latest wave
  std::vector<TaskId> sums_in_;         // likewise, back
  std::vector<TaskId> closed_;          // when a slot for sums was free again, in their order
  std::vector<TaskId> heads_;           // of the step being built
  std::vector<TaskId> ends_;            // of backward, likewise
};

}  // namespace sluice::offload
