// What NVMe paths do with blocks as a run moves them: sequential reads, writes, and both at once,
// past the page cache, on a scratch file without a name that is written before it is read.
//
// The file is striped over the paths, by the same weights as a run's state: one path is measured by
// itself, several all together. It is as large as half a second of writing makes it,
// within most_file_bytes and a quarter of what is free. Folders that are missing are made, as the
// run makes them.
//
// Memory:  buffers of at most kMostBufferBytes, or of two blocks where blocks are larger. Where
//          they hold fewer blocks than the queues, fewer are in flight.
// Threads: one; blocking, about fill_seconds + 3 * seconds by the backend's clock.
// Errors:  kNoSpace, naming the path and what is needed; those of the files and the drive.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "aio/io_backend.h"
#include "aio/result.h"
#include "aio/units.h"
#include "engine/probe/timed_passes.h"
#include "offload/planner/machine_speeds.h"

namespace sluice::engine {

struct DriveProbeOptions {
  std::vector<std::string> folders;
  std::vector<int> weights;  // of the folders' stripes; empty: equal
  std::uint64_t block_bytes = kMiB;
  int queue_depth = 32;  // of reads, and again of writes, as the run has it
  std::uint64_t stripe_bytes = kMiB;
  std::uint64_t most_file_bytes = kGiB;
  double fill_seconds = 0.5;     // at most
  double seconds = 0.35;         // each of the three measurements
  PassSpread* spread = nullptr;  // of the parts of each; may be null
  double io_watchdog_s = 0;      // a transfer that takes longer is named; 0: none is
};

inline constexpr std::uint64_t kMostBufferBytes = 256 * kMiB;

// `on_progress` (may be empty) gets fractions of 1.
Result<offload::DuplexRates> probe_drives(aio::IoBackend& backend, const DriveProbeOptions& options,
                                          const std::function<void(double)>& on_progress = {});

}  // namespace sluice::engine
