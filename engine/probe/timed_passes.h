// How long a pass of some work takes, where it can be repeated: one to warm up, then passes until
// the time is over; the median of them, which an interruption by somebody else does not move.
#pragma once

#include <algorithm>
#include <functional>
#include <vector>

#include "aio/check.h"
#include "aio/clock.h"

namespace sluice::engine {

inline double median_of(std::vector<double> values) {
  SLUICE_CHECK(!values.empty(), "the median of nothing");
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// At least three passes, and at most kMostPasses, whatever `seconds` says.
inline double median_pass_seconds(const Clock& clock, double seconds,
                                  const std::function<void()>& pass) {
  constexpr std::size_t kLeastPasses = 3;
  constexpr std::size_t kMostPasses = 100'000;
  pass();
  std::vector<double> passes;
  const std::int64_t begin_ns = clock.now_ns();
  std::int64_t last_ns = begin_ns;
  while (
      passes.size() < kMostPasses &&
      (passes.size() < kLeastPasses || 1e-9 * static_cast<double>(last_ns - begin_ns) < seconds)) {
    pass();
    const std::int64_t now_ns = clock.now_ns();
    passes.push_back(1e-9 * static_cast<double>(now_ns - last_ns));
    last_ns = now_ns;
  }
  return median_of(std::move(passes));
}

}  // namespace sluice::engine
