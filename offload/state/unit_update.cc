#include "offload/state/unit_update.h"

#include <algorithm>

namespace sluice::offload {

std::vector<ScalarRange> scalar_ranges(const UnitSpec& unit) {
  std::vector<ScalarRange> ranges;
  std::uint64_t end = 0;
  for (const GroupRange& range : unit.scalars) {
    end += range.elements;
    if (!ranges.empty() && ranges.back().group == range.group)
      ranges.back().end = end;
    else
      ranges.push_back({.end = end, .group = range.group});
  }
  return ranges;
}

UnitUpdate::Piece UnitUpdate::piece(int group, std::uint64_t begin, std::uint64_t end) const {
  if (ranges.empty()) return {groups[static_cast<std::size_t>(group)], end};
  const auto range = std::upper_bound(
      ranges.begin(), ranges.end(), begin,
      [](std::uint64_t element, const ScalarRange& it) { return element < it.end; });
  return {groups[static_cast<std::size_t>(range->group)], std::min(end, range->end)};
}

}  // namespace sluice::offload
