// DeviceTier: a GPU, as the optimizer sees it: a span of memory that its owner lends, and a stream.
// Implemented with CUDA in device_tier_cuda.h.
//
// Addresses are the GPU's; the host never follows them. Everything runs in the order of the calls.
//
// Threads: one call at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "aio/result.h"
#include "offload/adamw/adamw_arrays.h"

namespace sluice::offload {

class DeviceTier {
 public:
  virtual ~DeviceTier() = default;
  // For optimizer state; aligned to 256 bytes.
  virtual std::span<std::byte> memory() const = 0;
  // Enqueues one step and returns; waits for nothing.
  virtual Status step(const AdamwScalars& scalars, const AdamwArrays& arrays,
                      std::uint64_t elements) = 0;
  // Enqueue a copy between host memory and any GPU memory. The host memory must stay, untouched,
  // until finish(). If it is pinned, it is copied while the host does other work.
  virtual Status start_read(const void* from, std::span<std::byte> to) = 0;
  virtual Status start_write(void* to, std::span<const std::byte> from) = 0;
  // Waits until everything enqueued is done; an error may be from any part of it.
  virtual Status finish() = 0;
};

}  // namespace sluice::offload
