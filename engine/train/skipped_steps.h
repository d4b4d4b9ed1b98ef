// SkippedSteps: whether a run still gets anywhere while its fp16 steps overflow and are skipped.
//
// A dynamic loss scale falls until a step fits, and ends the run where it may fall no further. A
// static one stays, and so do the weights while every step is skipped: what overflowed many times
// in a row will go on to. Counts the steps of one process; threads: one.
#pragma once

#include <cstdint>

#include "aio/result.h"

namespace sluice::engine {

class SkippedSteps {
 public:
  static constexpr std::int64_t kMostInARow = 20;

  explicit SkippedSteps(double static_scale) : static_scale_(static_scale) {}  // 0: dynamic

  // kInvalidArgument, with what to do, after kMostInARow skipped ones at a static scale.
  Status after_step(bool skipped);

  bool all() const { return taken_ > 0 && in_a_row_ == taken_; }  // skipped, and there were some

 private:
  double static_scale_;
  std::int64_t taken_ = 0;
  std::int64_t in_a_row_ = 0;
};

}  // namespace sluice::engine
