// IoStats: what an IoQueue has done since it was made, or since reset_stats().
#pragma once

#include <cstdint>

#include "aio/latency_histogram.h"

namespace sluice::aio {

struct IoDirectionStats {
  std::uint64_t requests = 0;       // ended without error
  std::uint64_t payload_bytes = 0;  // of those requests
  std::uint64_t blocks = 0;         // transfers the backend completed, resumed ones included
  std::uint64_t device_bytes = 0;   // bytes it moved: payload, padding, sectors read to be modified
  LatencyHistogram block_latency;   // each transfer, from the backend's submit to its completion
};

struct IoStats {
  IoDirectionStats read;
  IoDirectionStats write;
  std::uint64_t syncs = 0;
  std::uint64_t short_transfers = 0;  // resumed
  std::uint64_t retries = 0;         // after EINTR, EAGAIN, nothing transferred, or a drive's error
  std::uint64_t bounced_blocks = 0;  // went through a bounce buffer
  std::uint64_t failed_requests = 0;  // cancelled ones not counted
};

}  // namespace sluice::aio
