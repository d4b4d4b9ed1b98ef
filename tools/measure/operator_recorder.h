// Records what LibTorch's operators take on the CPU, by its profiler (Kineto).
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "aio/result.h"
#include "tools/measure/gpu_profile.h"

namespace sluice::tools {

// Runs `work`, and returns what its thread called of LibTorch's operators, with the phase where
// PhaseRanges (phase_ranges.h) opens some. Recording costs about a
// microsecond a call. `trace_file`: where a trace goes, for Perfetto; empty: none. What `work`
// throws, this throws.
// Errors: kIo.
Result<std::vector<GpuEvent>> record_operators(const std::function<void()>& work,
                                               const std::string& trace_file);

}  // namespace sluice::tools
