// What the ranks of a run exchange per second, and what the buses of a host's GPUs do while all of
// them copy: measured by all ranks, or from the file where the first rank has it (speeds_cache.h).
//
// Memory:  two buffers, of the GPU where the run computes there, with what NCCL takes; all given
//          back before it returns.
// Threads: one; a collective: all ranks call it. A few seconds, mostly of NCCL's connections.
// Errors:  as from Communicator, and those of the parts.
#pragma once

#include <cstdint>
#include <string>

#include "aio/result.h"
#include "engine/comm/communicator.h"
#include "engine/config/config.h"
#include "engine/probe/probe_report.h"

namespace sluice::engine {

struct LinkProbeOptions {
  std::string cache_path;  // empty: nothing is kept
  bool refresh = false;
  std::int64_t unix_s = 0;  // now
};

// Only the first rank's is complete: the others need not know what it has found in its file.
Result<MeasuredLink> probe_link(Communicator& link, const config::Config& config,
                                const LinkProbeOptions& options);

// Of the current GPU, by NCCL beside `host`. kUnsupported without CUDA.
Result<offload::LinkSpeeds> probe_gpu_link(Communicator& host);

}  // namespace sluice::engine
