// gpu_probe.h in a build without CUDA.
#include "engine/probe/gpu_probe.h"
#include "engine/probe/link_probe.h"

namespace sluice::engine {
namespace {

Error no_cuda_code() {
  return Error(ErrorCode::kUnsupported,
               "this build of Sluice has no CUDA code and cannot measure a GPU: install nvcc and "
               "run tools/setup again");
}

}  // namespace

std::optional<GpuIdentity> gpu_identity() { return std::nullopt; }

Result<GpuSpeeds> probe_gpu(const GpuProbeOptions& /*options*/,
                            const std::function<void(double)>& /*on_progress*/) {
  return no_cuda_code();
}

Result<offload::DuplexRates> probe_bus(double /*seconds*/) { return no_cuda_code(); }

Result<offload::LinkSpeeds> probe_gpu_link(Communicator& /*host*/) { return no_cuda_code(); }

void return_gpu_memory() {}

}  // namespace sluice::engine
