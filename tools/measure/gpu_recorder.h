// Records what the GPU does, by LibTorch's profiler (Kineto, over CUPTI).
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "aio/result.h"
#include "tools/measure/gpu_profile.h"

namespace sluice::tools {

// Runs `work`, waits for the GPU, and returns all kernels, copies and fills of the process since
// then, whichever thread asked for them. Recording slows the host down by a few microseconds per
// kernel. What `work` throws, this throws.
// Errors: kInternal where the driver gives no events (a driver without profiling), kIo.
struct GpuRecording {
  // Where a trace with the host's calls goes, for chrome://tracing or Perfetto; empty: none.
  std::string trace_file;
  bool by_phase = false;  // events have the phase, of those that PhaseRanges (phase_ranges.h) opens
};
Result<std::vector<GpuEvent>> record_gpu(const std::function<void()>& work,
                                         const GpuRecording& options);

}  // namespace sluice::tools
