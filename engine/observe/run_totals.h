// RunTotals: what the steps of a run add up to, and the table that is printed when it ends.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "engine/observe/step_metrics.h"

namespace sluice::engine {

class RunTotals {
 public:
  void add(const StepMetrics& metrics);

  // The loss, where the time went, what crossed each bus, and the peaks of memory, in columns:
  //
  //   time                 total   share   per step
  //   forward             12.3 s   41.0%    61.5 ms
  //   ...
  // Tiers that were not used are left out, and the loss where there is none (NaN: nothing was
  // computed). Empty without a step.
  std::string closing_table() const;

 private:
  std::int64_t steps_ = 0;
  std::int64_t skipped_ = 0;
  StepMetrics first_;
  StepMetrics last_;
  StepMetrics sum_;  // of times and bytes; for memory the largest
  double tokens_ = 0;
  std::optional<double> val_loss_;
};

}  // namespace sluice::engine
