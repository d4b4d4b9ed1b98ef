// Records the CPU time of LibTorch's operators with its profiler (Kineto).
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "aio/result.h"
#include "tools/measure/gpu_profile.h"

namespace sluice::tools {

// Runs `work` and returns the LibTorch operators that its thread called, with their phase where
// PhaseRanges (phase_ranges.h) are open. Recording costs about a microsecond per call.
// `trace_file`: path of a trace for Perfetto; empty: none. Exceptions of `work` are passed on.
// Errors: kIo.
Result<std::vector<GpuEvent>> record_operators(const std::function<void()>& work,
                                               const std::string& trace_file);

}  // namespace sluice::tools
