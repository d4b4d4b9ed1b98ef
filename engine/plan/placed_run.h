// PlacedRun: the places of a subject's units on a machine. It is the planner's best placement over
// all sizes of waves, and over the stripes that may be chosen if a drive lacks room.
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
                                       std::int64_t wave_micro_batches);

}  // namespace sluice::engine
