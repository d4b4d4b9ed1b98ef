// What one of several ranks of a host may take of it, and what all of them take: each has as large
// a part of the memory, and they share the room on the drives.
//
// Threads: any.
#pragma once

#include "engine/budget/memory_plan.h"
#include "engine/config/config.h"
#include "engine/preflight/machine_facts.h"

namespace sluice::engine {

// The host's, divided among so many ranks.
config::Budget budget_of_rank(config::Budget budget, int ranks);
MachineFacts facts_of_rank(MachineFacts facts, int ranks);

// One rank's plan, with what all of them have on the drives.
MemoryPlan plan_of_host(MemoryPlan plan, int ranks);

}  // namespace sluice::engine
