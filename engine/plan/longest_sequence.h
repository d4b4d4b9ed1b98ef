// The longest sequence that a run could train on where it was placed: its memory alone decides.
//
// Threads: one.
// Errors:  those of plan_memory().
#pragma once

#include <cstdint>

#include "aio/result.h"
#include "engine/plan/placed_run.h"

namespace sluice::engine {

// In tokens, with one sequence for each rank in a step; everything else is as configured. Exact to
// within 1%, and not too long. It may be longer than the model's context, unless positions have
// parameters. 0: not even the shortest fits.
Result<std::int64_t> longest_sequence(const PlanSubject& subject, const PlacedRun& placed);

}  // namespace sluice::engine
