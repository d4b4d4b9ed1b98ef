// PlacedRun: where a subject's units go on a machine: the best of the planner's placements for the
// waves and, where a drive lacks room, the stripes that may be chosen.
//
// Threads: one.
// Errors:  those of plan_memory(). That nothing fits is not an error.
#pragma once

#include "aio/result.h"
#include "engine/plan/plan_machine.h"

namespace sluice::engine {

struct PlacedRun {
  PlanMachine machine;  // with the stripes that were chosen
  offload::TierBytes budget;
  offload::PlannerInput input;
  offload::PlacementPlan placement;
  MemoryPlan memory;
};

Result<PlacedRun> place_run(const PlanSubject& subject, PlanMachine machine);

// What is asked of the planner for the subject with `config`, which may differ from its own.
Result<offload::PlannerInput> input_of(const PlanSubject& subject, const config::Config& config,
                                       const ProbeReport& machine, const offload::TierBytes& budget,
                                       std::int64_t wave_micro_batches);

}  // namespace sluice::engine
