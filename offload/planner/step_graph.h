// StepGraph: a training step as tasks on streams, in the order of its program. predict_step() runs
// it.
//
// The slot of a streamed unit is the least recently used one. So slots, and what stays on the GPU
// from forward to backward, depend on the order alone and are decided while building.
//
// Memory: the constructor's arguments must outlive it.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "offload/planner/fluid_schedule.h"
#include "offload/planner/step_inputs.h"
#include "offload/planner/step_link.h"
#include "offload/planner/step_model.h"
#include "offload/planner/step_tasks.h"
#include "offload/planner/step_transfers.h"
#include "offload/step_program.h"

namespace sluice::offload {

struct StepGraphOptions {
  int steps = 0;  // 0: as many as needed to reach a steady state
  // Reads and writes on the drives are outside tasks (FluidSchedule). State tasks are listed by
  // records(), and no task waits for state writes.
  bool drives_outside = false;
  // Models every wave. If false, a step of more than four waves is modelled by its first and last
  // wave and two in between. The second of these represents all omitted waves, because the first
  // one finds a bus that had time to spare.
  bool all_waves = false;
};

class StepGraph {
 public:
  // The first wave waits for updates and the last one sends gradients; the waves between are alike.
  static constexpr int kModelledWaves = 4;
  static constexpr int kMiddleWave = 2;  // represents the omitted waves

  using Kind = StepTask;
  using Record = StepRecords::Record;
  using RecordTasks = StepRecords::Tasks;

  StepGraph(const std::vector<UnitCost>& units, const std::vector<UnitPlacement>& places,
            const MachineSpeeds& speeds, const StepModelOptions& options,
            const StepGraphOptions& graph = {});
  StepGraph(const StepGraph&) = delete;
  StepGraph& operator=(const StepGraph&) = delete;

  FluidSchedule& schedule() { return tasks_.schedule(); }

  // Tasks of one step. `first`: the norm that it begins with, kNoTask for time 0. The vectors gates
  // and gpu_begins are by unit: the host update that its forward waits for, and its first task on
  // the GPU.
  struct Marks {
    TaskId first = kNoTask;
    TaskId head = kNoTask;          // in the first wave
    std::vector<TaskId> heads;      // by wave
    std::vector<TaskId> backwards;  // by wave: the end of its backward
    TaskId last = kNoTask;
    std::vector<TaskId> gates;
    std::vector<TaskId> gpu_begins;
  };
  const std::vector<Marks>& steps() const { return steps_; }
  const Marks& reported() const { return steps_.back(); }
  // After the schedule has run: how long the GPU was idle because a unit's host update was not
  // done.
  double exposed_s(const Marks& step) const;
  double begin_s(const Marks& step) const;
  double forward_s(const Marks& step) const;  // all waves
  double end_s(const Marks& step) const;
  // The wave that represents several; empty if all waves are modelled.
  FluidSchedule::Repeated repeated(const Marks& step) const;
  // The work of one step, all waves included, by resource.
  const std::array<double, kResources>& work() const { return tasks_.work(); }
  double received_bytes() const { return tasks_.received_bytes(); }  // per step, from other ranks

  // All steps, in order: the parts of units' state that are read, computed and written.
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
  bool adds_up_in_buffers() const;
  TaskId gradient_buffer(int unit);

  // The parameters fetched for the next compute task.
  struct Fetched {
    std::vector<int> units;   // the task's own unit first
    TaskId own = kNoTask;     // its parameters are there when this is done; kNoTask: already there
    TaskId lender = kNoTask;  // the same for the last unit that it borrows from
  };

  const StepInputs inputs_;
  const Waves waves_;       // the modelled ones
  const int not_modelled_;  // number of waves that the middle wave also represents
  const StepProgram program_;
  StepTasks tasks_;
  StepLink link_;
  StepRecords records_;
  StepParams params_;
  StepGradients gradients_on_drives_;
  std::vector<int> ring_leaver_;    // by unit: the unit whose place in the ring it takes, or -1
  std::vector<int> ring_follower_;  // by unit: the unit that had the place before it, or -1

  std::vector<Marks> steps_;
  Fetched fetched_;
  TaskId head_ = kNoTask;
  TaskId computed_ = kNoTask;  // the task whose gradient is sent next
  TaskId last_ = kNoTask;      // also the norm with which the next step begins
  std::vector<TaskId> updated_;
  std::vector<TaskId> gpu_begins_;
  std::vector<TaskId> inputs_out_;      // by unit: its input has left the GPU
  std::vector<TaskId> inputs_written_;  // by unit: its input is on the drives, if it is spilled
  std::vector<TaskId> spills_;          // the tasks that freed each spill buffer, in order
  std::vector<TaskId> backwards_;       // by unit
  std::vector<TaskId> gradients_;       // in order, for the step being built
  std::vector<TaskId> sums_out_;        // by unit: to the host, in the latest wave
  std::vector<TaskId> sums_in_;         // by unit: back to the GPU
  std::vector<TaskId> closed_;          // the tasks that freed each slot for sums, in order
  std::vector<TaskId> heads_;           // for the step being built
  std::vector<TaskId> ends_;            // ends of backward, for the step being built
};

}  // namespace sluice::offload
