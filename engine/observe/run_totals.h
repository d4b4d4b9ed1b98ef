// RunTotals: the totals of a run's steps, and the table that is printed at its end.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/observe/step_metrics.h"

namespace sluice::engine {

class RunTotals {
 public:
  // A plan within these bounds counts as accurate.
  static constexpr double kLeastOfPlan = 0.7;
  static constexpr double kMostOfPlan = 1.4;
  // A single step at norm 0 may have a batch without trained tokens.
  static constexpr std::int64_t kStepsAtNorm0 = 3;

  void add(const StepMetrics& metrics);
  // Sets the plan's prediction for a step; the table then compares the two.
  void compare_with_plan(double step_s) { planned_step_ms_ = 1e3 * step_s; }
  // Sets the measured rate of large products on all GPUs together; the table then has its share.
  void compare_with_limit(double flops_per_s) { limit_tflops_per_s_ = 1e-12 * flops_per_s; }
  // The median step time divided by the plan's. The first step is ignored, because it warms up.
  // nullopt until there are kLeastCompared others.
  std::optional<double> step_over_plan() const;
  bool far_from_plan() const;
  // Whether the gradient norm of the last kStepsAtNorm0 steps was exactly 0. Skipped steps do not
  // count.
  bool learns_nothing() const { return last_at_norm_0_ >= kStepsAtNorm0; }

  // The loss, the times, the traffic of each bus, and the peaks of memory, in columns:
  //
  //   time                 total   share   per step
  //   forward             12.3 s   41.0%    61.5 ms
  //   ...
  // Unused tiers are left out, and so is a NaN loss, which means that nothing was computed. Empty
  // without a step.
  std::string closing_table() const;

 private:
  std::int64_t steps_ = 0;
  std::int64_t skipped_ = 0;
  std::int64_t at_norm_0_ = 0;
  std::int64_t last_at_norm_0_ = 0;
  StepMetrics first_;
  StepMetrics last_;
  StepMetrics sum_;  // sums of times and bytes; the maximum for memory
  static constexpr std::size_t kLeastCompared = 3;
  double median_step_ms() const;

  double tokens_ = 0;
  double teraflops_ = 0;
  double gpu_busy_ms_ = 0;
  double gpu_known_ms_ = 0;
  double planned_step_ms_ = 0;         // 0: no plan
  double limit_tflops_per_s_ = 0;      // 0: unknown
  std::vector<double> later_step_ms_;  // of all but the first
  std::optional<double> val_loss_;
};

}  // namespace sluice::engine
