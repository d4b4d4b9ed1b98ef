#include "engine/device/gpu.h"

#ifdef SLUICE_TORCH
#include <ATen/Context.h>
#endif

namespace sluice::engine {
namespace {

bool gpu_is_there() {
#ifdef SLUICE_TORCH
  return at::hasCUDA();
#else
  return false;
#endif
}

}  // namespace

bool uses_cuda(const config::Config& config) {
  return gpu_is_there() && config.run.device != config::Device::kCpu;
}

Status check_device(const config::Config& config) {
  if (config.run.device != config::Device::kCuda || uses_cuda(config)) return {};
  return Error(ErrorCode::kInvalidArgument,
               "run.device is \"cuda\", and LibTorch finds no GPU that it can use: check "
               "nvidia-smi, or train on the CPU (run.device: \"cpu\")");
}

Error no_cuda() {
  return Error(ErrorCode::kUnsupported,
               "this build of Sluice has no CUDA code: install nvcc and run tools/setup again, or "
               "train on the CPU (run.device: \"cpu\")");
}

}  // namespace sluice::engine
