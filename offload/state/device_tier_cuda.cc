#include "offload/state/device_tier_cuda.h"

#include <cuda_runtime.h>

#include <string>

#include "offload/adamw/adamw_cuda.h"

namespace sluice::offload {
namespace {

Error failed(const std::string& what, cudaError_t result) {
  static_cast<void>(cudaGetLastError());  // so that the next launch does not report it again
  return Error(ErrorCode::kInternal, what + " failed: " + cudaGetErrorString(result));
}

}  // namespace

Status CudaDeviceTier::step(const AdamwScalars& scalars, const AdamwArrays& arrays,
                            std::uint64_t elements) {
  return adamw_step_cuda(scalars, arrays, elements, stream_);
}

Status CudaDeviceTier::start_read(const void* from, std::span<std::byte> to) {
  return start_copy(to.data(), from, to.size(), false);
}

Status CudaDeviceTier::start_write(void* to, std::span<const std::byte> from) {
  return start_copy(to, from.data(), from.size(), true);
}

Status CudaDeviceTier::start_copy(void* to, const void* from, std::uint64_t size_bytes,
                                  bool to_device) {
  const cudaError_t result = cudaMemcpyAsync(
      to, from, size_bytes, to_device ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToHost,
      static_cast<cudaStream_t>(stream_));
  if (result == cudaSuccess) return {};
  return failed("copying " + std::to_string(size_bytes) + " bytes " + (to_device ? "to" : "from") +
                    " the GPU",
                result);
}

Status CudaDeviceTier::finish() {
  const cudaError_t result = cudaStreamSynchronize(static_cast<cudaStream_t>(stream_));
  if (result == cudaSuccess) return {};
  return failed("a step, or a copy to or from the GPU,", result);
}

}  // namespace sluice::offload
