// The FLOPs profile of a run's steps, and the output that flops_profiler asks for.
#pragma once

#include <iosfwd>

#include "aio/io_queue.h"
#include "aio/result.h"
#include "engine/config/config.h"
#include "engine/profile/flops_profile.h"
#include "engine/run/training_run.h"

namespace sluice::tools {

// Everything but the step and its times. `limit_flops_per_s`: 0 if unknown.
engine::FlopsProfile flops_profile_of(engine::TrainingRun& run, int ranks,
                                      engine::PassTotals passes, double limit_flops_per_s);

// Writes the profile to flops_profiler's output_file, or to `results`.
Status write_flops_profile(const config::FlopsProfiler& wanted, const engine::FlopsProfile& profile,
                           aio::IoQueue& queue, std::ostream& results);

}  // namespace sluice::tools
