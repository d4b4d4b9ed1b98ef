// gpu_probe.h in a build without CUDA.
#include "engine/probe/gpu_probe.h"

namespace sluice::engine {

std::optional<GpuIdentity> gpu_identity() { return std::nullopt; }

Result<GpuSpeeds> probe_gpu(const GpuProbeOptions& /*options*/,
                            const std::function<void(double)>& /*on_progress*/) {
  return Error(ErrorCode::kUnsupported,
               "this build of Sluice has no CUDA code, so no GPU can be measured: install nvcc and "
               "run tools/setup again");
}

void return_gpu_memory() {}

}  // namespace sluice::engine
