// The rates of the host's memory and cores: a copy through DRAM, and the AdamW step. The step has
// its state in RAM, and goes tile by tile as in a run. Both use all threads, on memory several
// times as large as the caches.
//
// Memory:  host_probe_bytes(), freed before the return.
// Threads: one; blocking, for the time in the options, plus the time to touch the memory.
// Errors:  kOutOfMemory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "aio/executor.h"
#include "aio/result.h"
#include "engine/probe/timed_passes.h"
#include "offload/adamw/adamw_arrays.h"
#include "offload/adamw/isa.h"

namespace sluice::engine {

// Reads `bytes` at `from` and writes them at `to` with non-temporal stores; each thread copies a
// contiguous range. Both are 64-byte aligned, and `bytes` is a multiple of 64.
void copy_past_caches(aio::Executor& executor, std::byte* to, const std::byte* from,
                      std::uint64_t bytes);

struct HostProbeOptions {
  offload::StateForm form;
  offload::GradType grad_type = offload::GradType::kBf16;
  offload::Isa isa = offload::Isa::kScalar;
  std::uint64_t memory_bytes = 0;  // working set of the probe
  double copy_seconds = 0.3;
  double adamw_seconds = 0.4;
  PassSpread* spread = nullptr;  // over its passes; may be null
};

struct HostSpeeds {
  double copy_bytes_per_s = 0;  // read plus written
  double adamw_elements_per_s = 0;
};

// Four times the caches if there is room, within bounds. A probe of a few seconds cannot touch
// more, and less would not measure memory.
std::uint64_t host_probe_bytes(std::uint64_t cache_bytes, std::uint64_t free_bytes);

Result<HostSpeeds> probe_host(aio::Executor& executor, const HostProbeOptions& options);

// The scalars of an ordinary step; the measurement hardly depends on them.
offload::AdamwScalars probe_scalars();

}  // namespace sluice::engine
