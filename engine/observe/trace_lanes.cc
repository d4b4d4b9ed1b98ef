#include "engine/observe/trace_lanes.h"

#include <algorithm>
#include <utility>

namespace sluice::engine {
namespace {

// The ends of a lane's open spans, outermost first.
using OpenEnds = std::vector<std::int64_t>;

bool fits(OpenEnds& lane, const TraceSpan& span, bool nested) {
  while (!lane.empty() && lane.back() <= span.begin_ns) lane.pop_back();
  return lane.empty() || (nested && span.end_ns <= lane.back());
}

}  // namespace

std::vector<PlacedSpan> place_in_lanes(std::vector<TraceSpan> spans, bool nested) {
  std::stable_sort(spans.begin(), spans.end(), [](const TraceSpan& a, const TraceSpan& b) {
    return std::pair(a.begin_ns, b.end_ns) < std::pair(b.begin_ns, a.end_ns);
  });
  std::vector<OpenEnds> lanes;
  std::vector<PlacedSpan> placed;
  placed.reserve(spans.size());
  for (const TraceSpan& span : spans) {
    std::size_t lane = 0;
    while (lane < lanes.size() && !fits(lanes[lane], span, nested)) ++lane;
    if (lane == lanes.size()) lanes.emplace_back();
    lanes[lane].push_back(span.end_ns);
    placed.push_back({span, lane});
  }
  return placed;
}

}  // namespace sluice::engine
