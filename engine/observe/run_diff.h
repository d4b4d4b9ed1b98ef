// The point where two runs diverge: the first step whose results differ, and the units that differ.
//
// Results are the values that have the same bits in the same run under any placement. These are
// loss, learning rate, gradient norm, loss scale, and whether the step was skipped. Validation loss
// and unit hashes (run.hash_units) are compared if both runs have them. Times, bytes and memory are
// not results.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/observe/step_metrics.h"

namespace sluice::engine {

struct RunDifference {
  std::int64_t step = 0;
  std::vector<std::string> metrics;     // "loss 2.5 and 2.25", in full precision
  std::vector<std::string> gradients;   // units whose gradients differ, in unit order
  std::vector<std::string> parameters;  // units whose parameters differ
};

struct RunComparison {
  std::int64_t equal_steps = 0;   // compared and equal, before the difference if any
  std::int64_t hashed_steps = 0;  // of those, with unit hashes on both sides
  std::int64_t only_in_a = 0;     // steps that the other run lacks
  std::int64_t only_in_b = 0;
  std::optional<RunDifference> difference;
};

// Both in ascending order of steps.
RunComparison compare_runs(std::span<const StepMetrics> a, std::span<const StepMetrics> b);

}  // namespace sluice::engine
