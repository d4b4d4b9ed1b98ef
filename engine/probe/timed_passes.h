// The time of one pass of repeatable work: one pass to warm up, then passes until the time is over.
// The result is their median, which an interruption does not change.
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

// The spread of a measurement's passes: the largest ratio of a third quartile to a first.
class PassSpread {
 public:
  void add(std::vector<double> passes) {
    if (passes.size() < kLeast) return;
    std::sort(passes.begin(), passes.end());
    const double first = passes[passes.size() / 4];
    const double third = passes[passes.size() - 1 - passes.size() / 4];
    if (first > 0) worst_ = std::max(worst_, third / first);
  }
  double worst() const { return worst_; }

 private:
  static constexpr std::size_t kLeast = 4;  // fewer passes have no quartiles
  double worst_ = 1;
};

// At least three passes, and at most kMostPasses, whatever `seconds` is. `spread` may be null.
inline double median_pass_seconds(const Clock& clock, double seconds,
                                  const std::function<void()>& pass, PassSpread* spread = nullptr) {
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
  if (spread != nullptr) spread->add(passes);
  return median_of(std::move(passes));
}

}  // namespace sluice::engine
