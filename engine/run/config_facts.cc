#include "engine/run/config_facts.h"

#include "engine/device/gpu.h"
#include "engine/model/ops/cuda_kernels.h"
#include "engine/run/run_data.h"

namespace sluice::engine {

config::GpuKind gpu_kind(const config::Config& config) {
  constexpr int kAmpere = 8;
  if (!uses_cuda(config)) return config::GpuKind::kNone;
  return cuda_major(at::Device(at::kCUDA, 0)) >= kAmpere ? config::GpuKind::kWithBf16
                                                         : config::GpuKind::kWithoutBf16;
}

Result<std::uint64_t> samples_per_epoch(const config::Config& config) {
  return RunData::count_samples(config);
}

}  // namespace sluice::engine
