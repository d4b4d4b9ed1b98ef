// The lanes of a trace's track: spans of one lane follow each other or lie inside each other, as
// trace viewers require; what overlaps otherwise (two reads at once) gets lanes side by side.
#pragma once

#include <cstddef>
#include <vector>

#include "engine/observe/trace_log.h"

namespace sluice::engine {

struct PlacedSpan {
  TraceSpan span;
  std::size_t lane = 0;
};

// Of one track, ordered by beginning, the longer one first. Nested: spans may lie inside each
// other; else those of one lane never touch.
std::vector<PlacedSpan> place_in_lanes(std::vector<TraceSpan> spans, bool nested);

}  // namespace sluice::engine
