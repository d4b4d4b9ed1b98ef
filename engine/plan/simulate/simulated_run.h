// A planned run in virtual time: some steps of the run's schedule, with the traffic of its drives
// on a simulated drive (simulated_drives.h) and a GPU, a bus and a CPU as the step model has them
// (StepGraph, FluidSchedule). The output is what a real run shows: metrics of each step, and a
// trace with the names of a real one.
//
// How it differs from predict_step(): reads and writes of state follow the pipeline's own
// decisions, block by block, with the drive's latency and turns, rather than flowing like a fluid.
//
// Memory:  the run's swap buffers; no state. The seconds of a step with NVMe are simulated in about
//          as many milliseconds for each GB that is moved.
// Threads: one.
// Errors:  kInvalidArgument where a resource that the plan needs has no speed.
#pragma once

#include <vector>

#include "aio/result.h"
#include "engine/config/config.h"
#include "engine/observe/step_metrics.h"
#include "engine/observe/trace_log.h"
#include "engine/plan/run_plan.h"

namespace sluice::engine {

struct SimulationOptions {
  int steps = 3;              // after one that is not reported: the first begins with idle drives
  TraceLog* trace = nullptr;  // started; its names are the plan's, which must outlive it
};

// As many as steps; their loss is NaN.
Result<std::vector<StepMetrics>> simulate_run(const config::Config& config, const RunPlan& plan,
                                              const SimulationOptions& options);

}  // namespace sluice::engine
