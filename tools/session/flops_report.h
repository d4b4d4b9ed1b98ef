// The profile of a run's steps as numbers, and what flops_profiler asks for of them.
#pragma once

#include <iosfwd>

#include "aio/io_queue.h"
#include "aio/result.h"
#include "engine/config/config.h"
#include "engine/profile/flops_profile.h"
#include "engine/run/training_run.h"

namespace sluice::tools {

// All but the step and its times. `limit_flops_per_s`: 0 where it is unknown.
engine::FlopsProfile flops_profile_of(engine::TrainingRun& run, int ranks,
                                      engine::PassTotals passes, double limit_flops_per_s);

// To its output_file, or to `results`.
Status write_flops_profile(const config::FlopsProfiler& wanted, const engine::FlopsProfile& profile,
                           aio::IoQueue& queue, std::ostream& results);

}  // namespace sluice::tools
