// Changes that would make a placed run fit, or run faster.
//
// Threads: pure functions.
// Errors:  those of planner_input().
#pragma once

#include <vector>

#include "aio/result.h"
#include "engine/plan/placed_run.h"

namespace sluice::engine {

// The planner's hints, and hints to change the drives, the waves or the batch. Empty: the run fits.
Result<std::vector<offload::FitHint>> fit_hints(const PlanSubject& subject,
                                                const PlacedRun& placed);
// Requires a run that fits.
Result<std::vector<offload::WhatIf>> what_ifs(const PlanSubject& subject, const PlacedRun& placed);

}  // namespace sluice::engine
