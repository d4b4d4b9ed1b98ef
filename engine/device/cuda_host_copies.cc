#include "engine/device/cuda_host_copies.h"

#include <string>

#include "aio/units.h"

namespace sluice::engine {
namespace {

Error failed(const std::string& what, cudaError_t result) {
  static_cast<void>(cudaGetLastError());  // else the next launch reports it again
  return Error(ErrorCode::kInternal, what + " failed: " + cudaGetErrorString(result));
}

}  // namespace

Status CudaHostCopies::to_device(void* to, std::span<const std::byte> from) {
  const cudaError_t copied =
      cudaMemcpyAsync(to, from.data(), from.size(), cudaMemcpyHostToDevice, stream_);
  if (copied == cudaSuccess) return {};
  return failed("copying " + format_bytes(from.size()) + " to the GPU", copied);
}

Status CudaHostCopies::to_host(std::span<std::byte> to, const void* from) {
  const cudaError_t copied =
      cudaMemcpyAsync(to.data(), from, to.size(), cudaMemcpyDeviceToHost, stream_);
  if (copied == cudaSuccess) return {};
  return failed("copying " + format_bytes(to.size()) + " from the GPU", copied);
}

Status CudaHostCopies::wait() {
  const cudaError_t done = cudaStreamSynchronize(stream_);
  if (done == cudaSuccess) return {};
  return failed("a copy between host and GPU, or work before it,", done);
}

Status CudaHostCopies::call(void (*function)(void*) noexcept, void* argument) {
  const cudaError_t enqueued = cudaLaunchHostFunc(stream_, function, argument);
  if (enqueued == cudaSuccess) return {};
  return failed("enqueueing a function of the host", enqueued);
}

}  // namespace sluice::engine
