// HostCopies on a CUDA stream, with the process's pinned memory. Its destructor waits for the
// stream.
//
// Threads, errors: as HostCopies; kInternal with CUDA's message.
#pragma once

#include <cuda_runtime_api.h>

#include "engine/device/gpu.h"
#include "engine/device/host_copies.h"

namespace sluice::engine {

class CudaHostCopies final : private CopyStream {
 public:
  explicit CudaHostCopies(cudaStream_t stream,
                          HostCopies::Buffer buffer = HostCopies::Buffer::kIfRefused)
      : stream_(stream), copies_(cuda_host_pinning(), *this, buffer) {}
  ~CudaHostCopies() override { static_cast<void>(cudaStreamSynchronize(stream_)); }

  // Enqueues a copy to, or from, memory of the GPU.
  Status in(void* to, std::span<const std::byte> from) { return copies_.to_device(to, from); }
  Status out(std::span<std::byte> to, const void* from) { return copies_.to_host(to, from); }

 private:
  Status to_device(void* to, std::span<const std::byte> from) override;
  Status to_host(std::span<std::byte> to, const void* from) override;
  Status wait() override;
  Status call(void (*function)(void*) noexcept, void* argument) override;

  const cudaStream_t stream_;
  HostCopies copies_;
};

}  // namespace sluice::engine
