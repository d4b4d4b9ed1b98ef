// What the host's memory and cores do: a copy through DRAM, and the AdamW step of a run whose state
// lies in RAM, tile by tile as the run steps it; both with all threads, on memory several times as
// large as the caches.
//
// Memory:  host_probe_bytes(), given back before it returns.
// Threads: one; blocking, for as long as the options say, plus the time to touch the memory.
// Errors:  kOutOfMemory.
#pragma once

#include <cstdint>

#include "aio/executor.h"
#include "aio/result.h"
#include "engine/probe/timed_passes.h"
#include "offload/adamw/adamw_arrays.h"
#include "offload/adamw/isa.h"

namespace sluice::engine {

struct HostProbeOptions {
  offload::StateForm form;
  offload::GradType grad_type = offload::GradType::kBf16;
  offload::Isa isa = offload::Isa::kScalar;
  std::uint64_t memory_bytes = 0;  // what the probe works on
  double copy_seconds = 0.3;
  double adamw_seconds = 0.4;
  PassSpread* spread = nullptr;  // of its passes; may be null
};

struct HostSpeeds {
  double copy_bytes_per_s = 0;  // read plus written
  double adamw_elements_per_s = 0;
};

// Four times the caches where there is room, within bounds: a probe of a few seconds cannot touch
// more, and less would not measure memory.
std::uint64_t host_probe_bytes(std::uint64_t cache_bytes, std::uint64_t free_bytes);

Result<HostSpeeds> probe_host(aio::Executor& executor, const HostProbeOptions& options);

// The scalars of an ordinary step: the measurement does not depend on them otherwise.
offload::AdamwScalars probe_scalars();

}  // namespace sluice::engine
