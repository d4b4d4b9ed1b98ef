// How a planned run scales with its ranks: the same micro-batches per rank on one, two, four, ...
// ranks of a host, and then on two hosts, four, .... Each row is planned anew with its hosts'
// resources.
//
// Threads: pure functions. A row takes half a second.
// Errors:  those of planner_input().
#pragma once

#include <vector>

#include "aio/result.h"
#include "engine/plan/plan_subject.h"

namespace sluice::engine {

// Groups with fewer ranks, and `all` itself; each host has the same number.
std::vector<offload::RankGroup> growing_ranks(const offload::RankGroup& all);

// Requires a plan that fits; it is the last row.
Result<std::vector<RankGrowth>> rank_growth(const PlanSubject& subject, const RunPlan& plan);

}  // namespace sluice::engine
