// Where two runs diverge: the first step whose results differ, and the units in which they do.
//
// Results are what must be the same bits in the same run under any placement: loss, learning rate,
// gradient norm, loss scale, whether the step was skipped, validation loss where both have one, and
// hashes of units where both have them (run.hash_units). Times, bytes and memory are not results.
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
  std::vector<std::string> gradients;   // units whose gradients differ, in the order of units
  std::vector<std::string> parameters;  // units whose parameters do
};

struct RunComparison {
  std::int64_t equal_steps = 0;   // compared and found the same, before the difference if any
  std::int64_t hashed_steps = 0;  // of them, with hashes of units on both sides
  std::int64_t only_in_a = 0;     // steps that the other run does not have
  std::int64_t only_in_b = 0;
  std::optional<RunDifference> difference;
};

// Both in ascending order of steps.
RunComparison compare_runs(std::span<const StepMetrics> a, std::span<const StepMetrics> b);

}  // namespace sluice::engine
