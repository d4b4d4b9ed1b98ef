// CudaDeviceTier: a DeviceTier over GPU memory and a stream that belong to its creator.
//
// Copies go through the stream. Copies from pageable host memory may be complete before the call
// returns.
#pragma once

#include "offload/state/device_tier.h"

namespace sluice::offload {

class CudaDeviceTier final : public DeviceTier {
 public:
  // `memory` belongs to the device that must be current in every call; `stream` is a cudaStream_t.
  // Both must outlive the tier.
  CudaDeviceTier(std::span<std::byte> memory, void* stream) : memory_(memory), stream_(stream) {}

  std::span<std::byte> memory() const override { return memory_; }
  Status step(const AdamwScalars& scalars, const AdamwArrays& arrays,
              std::uint64_t elements) override;
  Status start_read(const void* from, std::span<std::byte> to) override;
  Status start_write(void* to, std::span<const std::byte> from) override;
  Status finish() override;

 private:
  Status start_copy(void* to, const void* from, std::uint64_t size_bytes, bool to_device);

  const std::span<std::byte> memory_;
  void* const stream_;
};

}  // namespace sluice::offload
