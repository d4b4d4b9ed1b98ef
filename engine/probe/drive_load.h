// DriveLoad: reads or writes of one block each, consecutive over a range of a target and repeated,
// with the queue always full.
//
// Memory:  the buffers are the caller's, one per request. With fewer than twice the queue's depth
//          the queue sometimes runs dry; with fewer than the depth it is never full.
// Threads: one owner; completions arrive on the backend's threads. On a backend in virtual time the
//          owner pumps (wait_until() and drain() do).
// Errors:  the first failure ends the load; drain() returns it.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

#include "aio/io_queue.h"
#include "aio/io_request.h"
#include "aio/io_target.h"

namespace sluice::engine {

class DriveLoad {
 public:
  struct Options {
    aio::IoKind kind = aio::IoKind::kRead;
    std::uint64_t first_byte = 0;  // of the range; offset and length are multiples of the block
    std::uint64_t range_bytes = 0;
    bool once = false;  // one pass over the range, not repeated
  };
  // Blocks have the queue's size; each buffer has room for one.
  DriveLoad(aio::IoQueue& queue, const aio::IoTarget& target,
            std::span<const std::span<std::byte>> buffers, const Options& options);
  ~DriveLoad();
  DriveLoad(const DriveLoad&) = delete;
  DriveLoad& operator=(const DriveLoad&) = delete;

  void start();
  void stop() { stopping_ = true; }  // starts no further request
  bool ended() const;
  Status drain();  // waits until no request is in flight

  std::uint64_t done_bytes() const { return done_bytes_; }
  // The number of blocks submitted in one pass over the range, from its beginning.
  std::uint64_t issued_blocks() const;

 private:
  struct Slot {
    DriveLoad* load = nullptr;
    std::span<std::byte> buffer;
    aio::IoRequest request;
  };

  static void on_done(aio::IoRequest& request, void* context) noexcept;
  bool issue(Slot& slot) noexcept;
  void retire() noexcept;

  aio::IoQueue& queue_;
  const aio::IoTarget& target_;
  const Options options_;
  const std::uint64_t block_count_;
  std::vector<Slot> slots_;
  std::atomic<std::uint64_t> next_block_{0};
  std::atomic<std::uint64_t> done_bytes_{0};
  std::atomic<bool> stopping_{false};

  mutable std::mutex mutex_;  // guards everything below
  std::condition_variable ended_;
  int active_ = 0;
  Status first_error_;
};

// Sleeps, or advances virtual time, until the deadline on the backend's clock or the end of `load`.
void wait_until(aio::IoBackend& backend, std::int64_t deadline_ns, const DriveLoad& load);

}  // namespace sluice::engine
