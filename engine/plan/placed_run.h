// PlacedRun: the places of a subject's units on a machine. It is the planner's best placement for
// all sizes of waves, with gradients in RAM or on NVMe. If a drive lacks room, other stripes are
// tried.
//
// Threads: one.
// Errors:  those of plan_memory(). A run that does not fit is not an error.
#pragma once

#include "aio/file_system.h"
#include "aio/result.h"
#include "engine/plan/plan_subject.h"

namespace sluice::engine {

// PlanMachine: the machine of a plan: measured by the probe, described, or partly both.
//
// Threads: one.
// Errors:  those of the probe.
struct PlanMachine {
  ProbeReport report;
  MachineFacts facts;
  NvmeStripes stripes;
};

// `files` reports the free space of the run's folders.
Result<PlanMachine> plan_machine(const PlanSubject& subject, const PlanRunOptions& asked,
                                 aio::FileSystem& files);

// The memory that a rank may use, without the slack that is left to a GPU's allocator.
offload::TierBytes budget_on(const PlanMachine& machine, const PlanSubject& subject);
// The memory of GPU and host for a rank, regardless of the budget; 0: unknown.
offload::TierBytes available_on(const PlanMachine& machine, const PlanSubject& subject);

// What a placement is searched for, where the configuration leaves it open.
struct StepChoice {
  std::int64_t wave_micro_batches = 0;  // RunSpec::wave_micro_batches
  bool moves_gradients = false;         // RunSpec::moves_gradients

  static StepChoice of(const offload::PlannerInput& input) {
    return {.wave_micro_batches = input.step.waves.of_a_wave,
            .moves_gradients = input.step.gradient_buffers > 0};
  }
};

// Whether the configuration leaves it open if gradients go to NVMe, and the run can do it.
bool may_move_gradients(const PlanSubject& subject, const config::Config& config);

struct Candidate {
  offload::PlannerInput input;
  offload::PlacementPlan placement;
};

// The best for all sizes of waves: all of a step's micro-batches, a half, a quarter and so on.
// Fewer waves need less traffic, but more memory for activations. Gradients on NVMe are tried with
// the best size and its neighbours, or with all if nothing fits. `config` may differ from the
// subject's own.
Result<Candidate> best_candidate(const PlanSubject& subject, const config::Config& config,
                                 const ProbeReport& machine, const offload::TierBytes& budget);

struct PlacedRun {
  PlanMachine machine;  // with the chosen stripes
  offload::TierBytes budget;
  offload::PlannerInput input;
  offload::PlacementPlan placement;
  MemoryPlan memory;
};

Result<PlacedRun> place_run(const PlanSubject& subject, PlanMachine machine);

// The planner's input for the subject with `config`, which may differ from the subject's own.
Result<offload::PlannerInput> input_of(const PlanSubject& subject, const config::Config& config,
                                       const ProbeReport& machine, const offload::TierBytes& budget,
                                       const StepChoice& choice);

}  // namespace sluice::engine
