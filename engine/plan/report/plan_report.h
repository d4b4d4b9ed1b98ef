// A RunPlan as text for people and as JSON for programs.
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

// Aligned text: the placement, the predicted step and its resources, improvements, the bytes
// written to drives, and the results of DeepSpeed's own estimators.
std::string format_plan(const config::Config& config, const RunPlan& plan,
                        const ClusterShape& cluster);
// The same as JSON, and the steps of a simulation if there was one.
std::string plan_json(const config::Config& config, const RunPlan& plan,
                      const ClusterShape& cluster, const std::vector<StepMetrics>& simulated = {});

// The predicted step, one JSON object on a line: the "prediction" of plan_json().
std::string prediction_json(const RunPlan& plan);

// Changes that would make the step faster. what_if_json(): one JSON array on a line, the "what_if"
// of plan_json(). The other: aligned text, empty if there are none.
std::string what_if_json(const RunPlan& plan);
std::string what_if_table(const RunPlan& plan);

// One or two lines for the log, before the first step.
std::string plan_summary(const RunPlan& plan);

// What the run costs its drives and what would write less; empty if they last for months, or if the
// run writes little.
std::string wear_warning(const config::Config& config, const RunPlan& plan);

// The memory of each part of the run on each tier, next to the budgets.
std::string memory_table(const RunPlan& plan);

// Why nothing fits, what needs most of the missing memory, and the nearest settings with which it
// would fit. Settings that reduce the largest part come first. More memory than the machine has is
// never suggested as a setting.
std::string does_not_fit(const config::Config& config, const RunPlan& plan);

}  // namespace sluice::engine
