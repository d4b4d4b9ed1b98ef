// The lanes of a trace's track. Spans of one lane are disjoint or nested, as trace viewers require;
// spans that overlap otherwise (two reads at once) get separate lanes.
#pragma once

#include <cstddef>
#include <vector>

#include "engine/observe/trace_log.h"

namespace sluice::engine {

struct PlacedSpan {
  TraceSpan span;
  std::size_t lane = 0;
};

// `spans`: of one track, ordered by beginning, the longer one first. `nested`: spans of a lane may
// be nested; otherwise they are disjoint.
std::vector<PlacedSpan> place_in_lanes(std::vector<TraceSpan> spans, bool nested);

}  // namespace sluice::engine
