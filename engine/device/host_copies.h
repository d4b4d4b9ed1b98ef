// HostCopies: copies between host and GPU memory on one stream, for any host memory.
//
//   pinned                 one asynchronous copy
//   pageable               piece by piece through a pinned buffer; the stream calls the function
//                          that copies a piece
//   pageable, no buffer    the driver's own copy, for which the caller waits
//
// Each is ordered by the stream alone, so that events mean the same. A copy reads and writes after
// what was enqueued before it. It is complete for what is enqueued after it. Until then the host
// memory stays valid, and nothing outside the stream's order uses it.
//
// Memory:  a buffer of up to kBufferBytes, taken in the constructor if memory was refused
//          (HostPinning), or if asked for. A copy in pieces allocates 24 bytes for each.
// Threads: one at a time.
// Errors:  those of the stream. A copy that failed may have been enqueued in part.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "aio/page_memory.h"
#include "aio/result.h"
#include "aio/units.h"
#include "engine/device/host_pinning.h"

namespace sluice::engine {

// The stream that copies are enqueued on.
class CopyStream {
 public:
  virtual ~CopyStream() = default;
  virtual Status to_device(void* to, std::span<const std::byte> from) = 0;
  virtual Status to_host(std::span<std::byte> to, const void* from) = 0;
  // Waits until all work enqueued so far is done.
  virtual Status wait() = 0;
  // Calls `function` on a thread of the driver, after all earlier work and before all later work.
  virtual Status call(void (*function)(void*) noexcept, void* argument) = 0;
};

class HostCopies {
 public:
  // If the driver refuses the largest buffer, smaller ones are tried.
  static constexpr std::uint64_t kBufferBytes = 4 * kMiB;
  static constexpr std::uint64_t kLeastBufferBytes = 256 * kKiB;
  enum class Buffer : std::uint8_t { kIfRefused, kAlways };

  // Both must outlive it, and all copies must have run when it is destroyed.
  HostCopies(HostPinning& pinning, CopyStream& stream, Buffer buffer = Buffer::kIfRefused);
  ~HostCopies();
  HostCopies(const HostCopies&) = delete;
  HostCopies& operator=(const HostCopies&) = delete;

  Status to_device(void* to, std::span<const std::byte> from);
  Status to_host(std::span<std::byte> to, const void* from);

  std::uint64_t buffer_bytes() const { return buffer_.size_bytes(); }

 private:
  enum class Way : std::uint8_t { kAtOnce, kInPieces, kWaiting };
  Way way_for(std::span<const std::byte> host) const;
  Status copy_on_host(std::byte* to, const std::byte* from, std::uint64_t bytes);

  HostPinning& pinning_;
  CopyStream& stream_;
  aio::PageMemory buffer_;  // empty: there is none
};

}  // namespace sluice::engine
