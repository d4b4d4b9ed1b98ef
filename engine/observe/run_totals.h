// What a run's steps amount to: their progress (TrainProgress), their totals (RunTotals), and where
// two runs diverge (compare_runs()).
#pragma once

#include <cstdint>
#include <cstdio>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "aio/terminal_line.h"
#include "engine/observe/step_metrics.h"

namespace sluice::engine {

// TrainProgress: the progress of training: a plain line every few steps, and on a terminal, below
// those lines, one that is rewritten in place.
//
//   step 120/2000  loss 3.2140  lr 3.00e-04  norm 0.83  12.3k tok/s  ETA 3:20  NVMe 1.20 + 1.10
//   GB/s
//
// Threads: one at a time.
class TrainProgress {
 public:
  struct Options {
    std::int64_t total_steps = 0;
    std::int64_t plain_every_steps = 10;  // and always the first and the last
    bool breakdown = false;               // also the times of a step's phases
    bool silent = false;                  // shows nothing
    std::FILE* out = stderr;              // must outlive the progress
  };
  explicit TrainProgress(const Options& options);

  // Call it after each step.
  void update(const StepMetrics& metrics);
  // Clears the line; call it before printing anything else.
  void clear() { line_.clear(); }

  // For the last step given. Rates are means over the last few dozen steps.
  std::string text() const;

 private:
  void average(double& mean, double value) const;

  Options options_;
  TerminalLine line_;
  StepMetrics last_;
  std::int64_t steps_ = 0;  // counted here
  std::int64_t skipped_ = 0;
  double step_ms_ = 0;
  double tokens_per_s_ = 0;
  double nvme_read_ = 0;  // bytes per step, like the next three
  double nvme_write_ = 0;
  double h2d_ = 0;
  double d2h_ = 0;
  double forward_ms_ = 0;
  double backward_ms_ = 0;
  double update_exposed_ms_ = 0;
  double recompute_ms_ = 0;  // like the next two, if measured
  double await_params_ms_ = 0;
  double await_inputs_ms_ = 0;
};

// RunTotals: the totals of a run's steps, and the table that is printed at its end.
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
  std::string result_table() const;

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

// The point where two runs diverge: the first step whose results differ, and the units that differ.
//
// Results are the values that have the same bits in the same run under any placement. These are
// loss, learning rate, gradient norm, loss scale, and whether the step was skipped. Validation loss
// and unit hashes (run.hash_units) are compared if both runs have them. Times, bytes and memory are
// not results.
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
