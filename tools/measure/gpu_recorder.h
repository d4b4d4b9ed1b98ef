// Records GPU activity with LibTorch's profiler (Kineto, over CUPTI).
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "aio/result.h"
#include "tools/measure/gpu_profile.h"

namespace sluice::tools {

// Runs `work`, waits for the GPU, and returns all kernels, copies and fills of the process since
// the start, from any thread. Recording slows the host down by a few microseconds per kernel.
// Exceptions of `work` are passed on.
// Errors: kInternal if the driver delivers no events (a driver without profiling), kIo.
struct GpuRecording {
  // Path of a trace that includes host calls, for chrome://tracing or Perfetto; empty: none.
  std::string trace_file;
  bool by_phase = false;  // events get their phase from the ranges of PhaseRanges
};
Result<std::vector<GpuEvent>> record_gpu(const std::function<void()>& work,
                                         const GpuRecording& options);

}  // namespace sluice::tools
