// DeviceTier: a GPU as the optimizer uses it: a span of memory lent by its owner, and a stream. The
// CUDA implementation is in device_tier_cuda.h.
//
// Addresses are in GPU memory; the host never dereferences them. Operations run in the order of the
// calls.
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
  // The memory for optimizer state, aligned to 256 bytes.
  virtual std::span<std::byte> memory() const = 0;
  // Enqueues one step and returns; waits for nothing.
  virtual Status step(const AdamwScalars& scalars, const AdamwArrays& arrays,
                      std::uint64_t elements) = 0;
  // Enqueue a copy between host memory and any GPU memory. The host memory must stay valid and
  // unmodified until finish(). If it is pinned, the copy overlaps with other work of the host.
  virtual Status start_read(const void* from, std::span<std::byte> to) = 0;
  virtual Status start_write(void* to, std::span<const std::byte> from) = 0;
  // Waits until all enqueued work is done; the error may come from any part of it.
  virtual Status finish() = 0;
};

}  // namespace sluice::offload
