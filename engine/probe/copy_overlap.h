// For two rows of copies that ran at the same time: the number of copies done when the first row
// ended. After that the other row had the bus to itself, so its later copies must not count.
#pragma once

#include <cstddef>
#include <span>

namespace sluice::engine {

// `ends_s`: the end of each copy of a row, ascending, in seconds since the common beginning.
// Returns the number of copies done at `at_s`, with the fraction of the one in progress.
inline double copies_done(std::span<const double> ends_s, double at_s) {
  double begin_s = 0;
  for (std::size_t i = 0; i < ends_s.size(); ++i) {
    if (ends_s[i] > at_s) return static_cast<double>(i) + (at_s - begin_s) / (ends_s[i] - begin_s);
    begin_s = ends_s[i];
  }
  return static_cast<double>(ends_s.size());
}

}  // namespace sluice::engine
