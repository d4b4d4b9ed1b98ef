#include "aio/extent_set.h"

#include <algorithm>
#include <iterator>

#include "aio/units.h"

namespace sluice::aio {

std::uint64_t ExtentSet::missing_bytes(std::uint64_t begin_bytes, std::uint64_t end_bytes) const {
  const std::uint64_t begin = align_down(begin_bytes, kBlockBytes);
  const std::uint64_t end = align_up(end_bytes, kBlockBytes);
  if (begin_bytes >= end_bytes) return 0;
  std::uint64_t present = 0;
  auto it = ends_.upper_bound(begin);
  if (it != ends_.begin()) --it;
  for (; it != ends_.end() && it->first < end; ++it) {
    const std::uint64_t from = std::max(begin, it->first);
    const std::uint64_t to = std::min(end, it->second);
    if (from < to) present += to - from;
  }
  return end - begin - present;
}

void ExtentSet::add(std::uint64_t begin_bytes, std::uint64_t end_bytes) {
  const std::uint64_t missing = missing_bytes(begin_bytes, end_bytes);
  if (missing == 0) return;
  total_bytes_ += missing;
  std::uint64_t begin = align_down(begin_bytes, kBlockBytes);
  std::uint64_t end = align_up(end_bytes, kBlockBytes);
  auto it = ends_.upper_bound(begin);
  if (it != ends_.begin() && std::prev(it)->second >= begin) --it;
  while (it != ends_.end() && it->first <= end) {
    begin = std::min(begin, it->first);
    end = std::max(end, it->second);
    it = ends_.erase(it);
  }
  ends_.emplace(begin, end);
}

void ExtentSet::cut(std::uint64_t end_bytes) {
  const std::uint64_t end = align_up(end_bytes, kBlockBytes);
  while (!ends_.empty()) {
    const auto last = std::prev(ends_.end());
    if (last->second <= end) return;
    const std::uint64_t from = std::max(last->first, end);
    total_bytes_ -= last->second - from;
    if (from == last->first) {
      ends_.erase(last);
    } else {
      last->second = from;
    }
  }
}

}  // namespace sluice::aio
