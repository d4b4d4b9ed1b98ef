// The share of a host's resources that one of several ranks may use, and the total of all ranks.
// Each rank has an equal part of the memory, and all share the space on the drives.
//
// Threads: any.
#pragma once

#include "engine/budget/memory_plan.h"
#include "engine/config/config.h"
#include "engine/preflight/machine_facts.h"

namespace sluice::engine {

// Divides the host's budget among its ranks.
config::Budget budget_of_rank(config::Budget budget, int ranks);
MachineFacts facts_of_rank(MachineFacts facts, int ranks);

// One rank's plan, with the NVMe bytes of all ranks.
MemoryPlan plan_of_host(MemoryPlan plan, int ranks);

}  // namespace sluice::engine
