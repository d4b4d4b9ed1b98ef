#include "engine/device/gpu.h"

namespace sluice::engine {

bool uses_cuda(const config::Config& config) {
  return gpu_is_there() && config.run.device != config::Device::kCpu;
}

Status check_device(const config::Config& config) {
  if (config.run.device != config::Device::kCuda || uses_cuda(config)) return {};
  if (!has_cuda_code())
    return Error(ErrorCode::kInvalidArgument, "run.device is \"cuda\", but " + no_cuda().message());
  return Error(ErrorCode::kInvalidArgument,
               "run.device is \"cuda\", but LibTorch finds no usable GPU: run sluice doctor, "
               "which says why, or train on the CPU (run.device: \"cpu\")");
}

Error no_cuda() {
  return Error(ErrorCode::kUnsupported,
               "this build of Sluice has no CUDA code: install nvcc and run tools/setup again, or "
               "train on the CPU (run.device: \"cpu\")");
}

}  // namespace sluice::engine
