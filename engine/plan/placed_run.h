// PlacedRun: the places of a subject's units on a machine. It is the planner's best placement over
// all sizes of waves, and over the stripes that may be chosen if a drive lacks room.
//
// Threads: one.
// Errors:  those of plan_memory(). A run that does not fit is not an error.
#pragma once

#include "aio/result.h"
#include "engine/plan/plan_machine.h"

namespace sluice::engine {

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
