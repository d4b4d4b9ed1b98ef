// PlanMachine: the machine of a plan: measured by the probe, described, or partly both.
//
// Threads: one.
// Errors:  those of the probe.
#pragma once

#include "aio/file_system.h"
#include "aio/result.h"
#include "engine/plan/plan_subject.h"

namespace sluice::engine {

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

}  // namespace sluice::engine
