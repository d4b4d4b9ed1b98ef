// Quantiles of a few measured values.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace sluice::tools {

// Interpolates between neighbouring values like Python's statistics and bench/compare_stats.py.
// `values` must not be empty.
inline double quantile(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  const double place = share * static_cast<double>(values.size() - 1);
  const auto low = static_cast<std::size_t>(place);
  const std::size_t high = std::min(low + 1, values.size() - 1);
  return values[low] + (values[high] - values[low]) * (place - static_cast<double>(low));
}

}  // namespace sluice::tools
