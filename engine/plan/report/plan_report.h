// A RunPlan for people and for programs to read.
//
// Threads: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/config/config.h"
#include "engine/observe/step_metrics.h"
#include "engine/plan/run_plan.h"

namespace sluice::engine {

struct ClusterShape {  // for DeepSpeed's estimates
  std::uint64_t gpus_per_node = 1;
  std::uint64_t nodes = 1;
};

// What lies where, the predicted step and its resources, what would relieve it, what the drives
// write, and what DeepSpeed's own estimators say: aligned text.
std::string format_plan(const config::Config& config, const RunPlan& plan,
                        const ClusterShape& cluster);
// Likewise, and the steps of a simulation, if there was one.
std::string plan_json(const config::Config& config, const RunPlan& plan,
                      const ClusterShape& cluster, const std::vector<StepMetrics>& simulated = {});

// The predicted step, one JSON object on a line: what plan_json() has as "prediction".
std::string prediction_json(const RunPlan& plan);

// What would make the step faster, one JSON array on a line: what plan_json() has as "what_if"; and
// as aligned text, empty where nothing is known.
std::string what_if_json(const RunPlan& plan);
std::string what_if_table(const RunPlan& plan);

// One or two lines for the log, before the first step.
std::string plan_summary(const RunPlan& plan);

// What the run takes of each tier, part by part, next to the budgets.
std::string memory_table(const RunPlan& plan);

// Why nothing fits, what takes most of what is missing, and the nearest settings with which it
// would: what makes the largest part smaller comes first, and more memory than the machine has is
// never suggested as a setting.
std::string does_not_fit(const config::Config& config, const RunPlan& plan);

}  // namespace sluice::engine
