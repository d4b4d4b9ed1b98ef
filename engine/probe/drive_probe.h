// The rates of NVMe paths for blocks as a run moves them: sequential reads, writes, and both at
// once. They are measured with direct IO, on an unnamed scratch file that is written before it is
// read.
//
// The file is striped over the paths, with the same weights as a run's state: a single path is
// measured alone, several together. Its size is what half a second of writing produces, within
// most_file_bytes and a quarter of the free space. The folders must exist, as for a run.
//
// Memory:  buffers of at most kMostBufferBytes, or of two blocks if blocks are larger. If they hold
//          fewer blocks than the queues, fewer are in flight.
// Threads: one; blocking, about fill_seconds + 3 * seconds by the backend's clock.
// Errors:  kNoSpace, naming the path and the needed space; those of the files and the drive.
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
  int queue_depth = 32;  // for reads and for writes each, as in the run
  std::uint64_t stripe_bytes = kMiB;
  std::uint64_t most_file_bytes = kGiB;
  double fill_seconds = 0.5;     // at most
  double seconds = 0.35;         // each of the three measurements
  PassSpread* spread = nullptr;  // over the parts of each measurement; may be null
  double io_watchdog_s = 0;      // a slower transfer is reported; 0: disabled
};

inline constexpr std::uint64_t kMostBufferBytes = 256 * kMiB;

// `on_progress` (may be empty) gets fractions from 0 to 1.
Result<offload::DuplexRates> probe_drives(aio::IoBackend& backend, const DriveProbeOptions& options,
                                          const std::function<void(double)>& on_progress = {});

}  // namespace sluice::engine
