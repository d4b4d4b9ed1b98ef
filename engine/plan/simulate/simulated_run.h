// Simulates a planned run in virtual time: some steps of the run's schedule. The drives' traffic
// goes to a simulated drive (simulated_drives.h); GPU, bus and CPU follow the step model
// (StepGraph, FluidSchedule). The output is that of a real run: metrics of each step, and a trace
// with a real trace's names.
//
// The difference to predict_step(): reads and writes of state follow the pipeline's own decisions,
// block by block, with the drive's latency and alternation, instead of flowing like a fluid.
//
// Memory:  the run's swap buffers; no state. A step with NVMe that takes N seconds is simulated in
//          about N milliseconds for each GB that is moved.
// Threads: one.
// Errors:  kInvalidArgument if a resource that the plan needs has no speed.
#pragma once

#include <vector>

#include "aio/result.h"
#include "engine/config/config.h"
#include "engine/observe/step_metrics.h"
#include "engine/observe/trace_log.h"
#include "engine/plan/run_plan.h"

namespace sluice::engine {

struct SimulationOptions {
  int steps = 3;              // after one that is not reported, since it starts with idle drives
  TraceLog* trace = nullptr;  // started; its names are the plan's, which must outlive it
};

// The metrics of each step; their loss is NaN.
Result<std::vector<StepMetrics>> simulate_run(const config::Config& config, const RunPlan& plan,
                                              const SimulationOptions& options);

}  // namespace sluice::engine
