// TrainProgress: the progress of training: a plain line every few steps, and on a terminal, below
// those lines, one that is rewritten in place.
//
//   step 120/2000  loss 3.2140  lr 3.00e-04  norm 0.83  12.3k tok/s  ETA 3:20  NVMe 1.20 + 1.10
//   GB/s
//
// Threads: one at a time.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>

#include "aio/terminal_line.h"
#include "engine/observe/step_metrics.h"

namespace sluice::engine {

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

}  // namespace sluice::engine
