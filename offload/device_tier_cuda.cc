#include "offload/device_tier_cuda.h"

#include <cuda_runtime.h>

#include <string>

#include "offload/adamw_cuda.h"

namespace sluice::offload {

Status CudaDeviceTier::step(const AdamwScalars& scalars, const AdamwArrays& arrays,
                            std::uint64_t elements) {
  return adamw_step_cuda(scalars, arrays, elements, stream_);
}

Status CudaDeviceTier::read(const void* from, std::span<std::byte> to) {
  return copy(to.data(), from, to.size(), false);
}

Status CudaDeviceTier::write(void* to, std::span<const std::byte> from) {
  return copy(to, from.data(), from.size(), true);
}

// Waits: an error of what was enqueued before may show only here.
Status CudaDeviceTier::copy(void* to, const void* from, std::uint64_t size_bytes, bool to_device) {
  const auto stream = static_cast<cudaStream_t>(stream_);
  cudaError_t result = cudaMemcpyAsync(
      to, from, size_bytes, to_device ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToHost, stream);
  if (result == cudaSuccess) result = cudaStreamSynchronize(stream);
  if (result == cudaSuccess) return {};
  static_cast<void>(cudaGetLastError());  // told here: the next launch shall not report it again
  return Error(ErrorCode::kInternal, "copying " + std::to_string(size_bytes) + " bytes " +
                                         (to_device ? "to" : "from") +
                                         " the GPU failed: " + cudaGetErrorString(result));
}

}  // namespace sluice::offload
