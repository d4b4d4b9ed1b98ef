// TraceFile: how busy each resource was during the steps of a run's trace.json, as far as the file
// can be read. Overlapping spans count once. With several ranks, only the first one's spans count.
//
// Memory: 16 bytes per span, at most kMostSpans.
// Errors: only if the file cannot be read.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "aio/result.h"

namespace sluice::report {

struct TraceFile {
  static constexpr std::size_t kMostSpans = std::size_t{1} << 21;

  struct Track {
    std::string name;  // as in traces: "compute", "NVMe read"
    double busy_s = 0;
    double bytes = 0;
  };
  double window_s = 0;  // time covered by the steps; 0: the trace has no steps
  std::vector<Track> tracks;
};

// Reads the format that engine/observe/trace_log.h writes: one event per line.
Result<TraceFile> read_trace_file(const std::string& path);

}  // namespace sluice::report
