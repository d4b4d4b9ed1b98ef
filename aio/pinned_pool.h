// PinnedPool: a fixed set of equal, page-aligned, pinned host buffers.
//
// Memory:  capacity * buffer_bytes (rounded up to 4096 a buffer), taken, touched and registered
//          once in create(); acquire() never allocates.
// Threads: all methods and ~Lease() from any thread; acquire() blocks, so never call it from a
//          completion callback. Waiting callers are served in order, so small requests cannot
//          starve a large one.
// Errors:  create() -> kOutOfMemory, or the hook's error.
// Shutdown: leases must be returned before the pool is destroyed (checked).
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "aio/io_backend.h"
#include "aio/page_memory.h"
#include "aio/result.h"

namespace sluice::aio {

// Registers the pool's memory elsewhere once, mainly with cudaHostRegister: this layer does not use
// CUDA, so the engine passes it in.
struct PinHook {
  std::function<Status(std::span<std::byte>)> pin;
  std::function<void(std::span<std::byte>)> unpin;
};

enum class MemoryLock : std::uint8_t {
  kNone,  // rely on registration and on the absence of swap
  kTry,   // mlock within RLIMIT_MEMLOCK; beyond it stay unlocked, logged once
};

class PinnedPool {
 public:
  struct Options {
    std::uint64_t buffer_bytes = 0;
    int capacity = 0;
    bool huge_pages = true;
    MemoryLock lock = MemoryLock::kTry;
    IoBackend* backend = nullptr;  // the memory is registered with it; must outlive the pool
    PinHook hook;
    Executor* executor = nullptr;  // touches the memory in parallel; used in create() only
  };

  // A move-only loan of one buffer, returned by its destructor.
  class Lease {
   public:
    Lease() = default;
    Lease(Lease&& other) noexcept;
    Lease& operator=(Lease&& other) noexcept;
    ~Lease();

    std::span<std::byte> bytes() const { return bytes_; }
    explicit operator bool() const { return pool_ != nullptr; }
    void release();

   private:
    friend class PinnedPool;
    Lease(PinnedPool* pool, int index, std::span<std::byte> bytes)
        : pool_(pool), index_(index), bytes_(bytes) {}
    PinnedPool* pool_ = nullptr;
    int index_ = -1;
    std::span<std::byte> bytes_;
  };

  struct Usage {
    std::uint64_t total_bytes = 0;   // the mapping
    std::uint64_t leased_bytes = 0;  // now
    std::uint64_t peak_leased_bytes = 0;
    std::uint64_t waits = 0;  // acquisitions that had to wait
    bool locked = false;      // mlock succeeded
    bool registered = false;  // with the backend
  };

  static Result<std::unique_ptr<PinnedPool>> create(const Options& options);
  // The bytes that create() takes for such buffers.
  static std::uint64_t mapped_bytes(std::uint64_t buffer_bytes, int capacity);
  ~PinnedPool();
  PinnedPool(const PinnedPool&) = delete;
  PinnedPool& operator=(const PinnedPool&) = delete;

  Lease acquire();  // waits for a free buffer
  // Takes all `leases.size()` buffers at once, and holds none while waiting: a task that held half
  // of its buffers and waited for the rest could deadlock with another. At most `capacity`.
  void acquire_all(std::span<Lease> leases);
  bool try_acquire_all(std::span<Lease> leases);

  int capacity() const { return capacity_; }
  std::uint64_t buffer_bytes() const { return buffer_bytes_; }
  int free_count() const;
  Usage usage() const;

 private:
  PinnedPool(const Options& options, PageMemory memory);
  std::span<std::byte> buffer(int index) const;
  void take_locked(std::span<Lease> leases);
  void give_back(int index) noexcept;

  const int capacity_;
  const std::uint64_t buffer_bytes_;
  const std::uint64_t stride_bytes_;
  const PinHook hook_;
  IoBackend* const backend_;
  PageMemory memory_;
  bool locked_ = false;
  bool registered_ = false;
  bool pinned_by_hook_ = false;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<int> free_;          // indices; guarded by mutex_, like all below
  std::uint64_t next_ticket_ = 0;  // waiting callers take tickets and are served in that order
  std::uint64_t serving_ticket_ = 0;
  int peak_leased_ = 0;
  std::uint64_t waits_ = 0;
};

}  // namespace sluice::aio
