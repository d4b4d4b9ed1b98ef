// PlanMachine: the machine that a subject is planned for: measured by the probe, described, or in
// part each.
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

// `files` reports what the run's folders have free.
Result<PlanMachine> plan_machine(const PlanSubject& subject, const PlanRunOptions& asked,
                                 aio::FileSystem& files);

// What a rank may take of it; what is left to the allocator of a GPU is not in it.
offload::TierBytes budget_on(const PlanMachine& machine, const PlanSubject& subject);
// What GPU and host have for a rank, whatever the budget; 0: unknown.
offload::TierBytes available_on(const PlanMachine& machine, const PlanSubject& subject);

}  // namespace sluice::engine
