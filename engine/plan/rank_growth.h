// How a planned run grows with its ranks: the same micro-batches of each rank on one, two, four,
// ... of a host, and then on two hosts, four, ..., each planned anew from what its hosts have.
//
// Threads: pure functions. Half a second a row.
// Errors:  those of planner_input().
#pragma once

#include <vector>

#include "aio/result.h"
#include "engine/plan/plan_subject.h"

namespace sluice::engine {

// Fewer ranks than these, and these; each host has as many.
std::vector<offload::RankGroup> growing_ranks(const offload::RankGroup& all);

// Of a plan that fits, which is the last row.
Result<std::vector<RankGrowth>> rank_growth(const PlanSubject& subject, const RunPlan& plan);

}  // namespace sluice::engine
