// How much of two rows of copies that ran at once was done when the first row ended: from then on
// the other had the bus to itself, which is no longer what is measured.
#pragma once

#include <cstddef>
#include <span>

namespace sluice::engine {

// `ends_s`: when each copy of a row ended, ascending, in seconds from the common beginning. Copies
// of the row that were done at `at_s`, with the share of the one in progress.
inline double copies_done(std::span<const double> ends_s, double at_s) {
  double begin_s = 0;
  for (std::size_t i = 0; i < ends_s.size(); ++i) {
    if (ends_s[i] > at_s) return static_cast<double>(i) + (at_s - begin_s) / (ends_s[i] - begin_s);
    begin_s = ends_s[i];
  }
  return static_cast<double>(ends_s.size());
}

}  // namespace sluice::engine
