// The exchange rates between the ranks of a run, and the bus rates of a host's GPUs while all of
// them copy. All ranks measure them, unless the first rank has them in its file (speeds_cache.h).
//
// Memory:  two buffers, on the GPU if the run computes there, and NCCL's memory; all of it is freed
//          before the return.
// Threads: one; a collective: all ranks call it. A few seconds, mostly for NCCL's connections.
// Errors:  those of Communicator, and those of the parts.
#pragma once

#include <cstdint>
#include <string>

#include "aio/result.h"
#include "engine/comm/communicator.h"
#include "engine/config/config.h"
#include "engine/probe/probe_report.h"

namespace sluice::engine {

struct LinkProbeOptions {
  std::string cache_path;  // empty: no cache
  bool refresh = false;
  std::int64_t unix_s = 0;  // the current time
};

// Only the first rank's result is complete: the others may lack values from its file.
Result<MeasuredLink> probe_link(Communicator& link, const config::Config& config,
                                const LinkProbeOptions& options);

// For the current GPU, by NCCL together with `host`. kUnsupported without CUDA.
Result<offload::LinkSpeeds> probe_gpu_link(Communicator& host);

}  // namespace sluice::engine
