// TraceFile: how busy each resource was during the steps of a run's trace.json, as far as it can be
// read. Spans that overlap count once; of several ranks, the first one's.
//
// Memory: 16 bytes a span, of kMostSpans at most.
// Errors: only where the file cannot be read.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "aio/result.h"

namespace sluice::report {

struct TraceFile {
  static constexpr std::size_t kMostSpans = std::size_t{1} << 21;

  struct Track {
    std::string name;  // as traces have it: "compute", "NVMe read"
    double busy_s = 0;
    double bytes = 0;
  };
  double window_s = 0;  // of the steps; 0: the file holds no trace of any
  std::vector<Track> tracks;
};

// As engine/observe/trace_log.h writes it: an event a line.
Result<TraceFile> read_trace_file(const std::string& path);

}  // namespace sluice::report
