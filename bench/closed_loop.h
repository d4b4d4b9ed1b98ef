// ClosedLoop: keeps every buffer of a session in flight. The completion callback of a block issues
// the next one, so the IO thread needs no other thread to continue.
//
// Threads: methods from one thread; callbacks run on the backend's threads.
// Errors:  the first failed transfer or wrong byte stops the loop; drain() returns it.
// The session must outlive the loop; the destructor stops and drains.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "aio/io_request.h"
#include "aio/latency_histogram.h"
#include "bench/aio_mode.h"
#include "bench/aio_session.h"
#include "bench/random.h"

namespace sluice::bench {

struct LoopJob {
  Mode mode = Mode::kRead;
  std::uint64_t range_bytes = 0;  // the used part of the target, from offset 0
  bool one_pass = false;          // kRead, kWrite: each block once, instead of repeating
                                  // until stop()
  std::uint64_t first_block = 0;  // where a pass begins
  std::optional<std::uint64_t> pattern_seed;  // writes carry the pattern, reads are checked
  std::uint64_t random_seed = 1;
};

// Transfers that completed while counting was on.
struct LoopCounts {
  std::uint64_t reads = 0;
  std::uint64_t writes = 0;
  std::uint64_t read_bytes = 0;
  std::uint64_t written_bytes = 0;
  aio::LatencyHistogram latency;
};

class ClosedLoop {
 public:
  ClosedLoop(AioSession& session, const LoopJob& job);
  ~ClosedLoop();
  ClosedLoop(const ClosedLoop&) = delete;
  ClosedLoop& operator=(const ClosedLoop&) = delete;

  void start();
  void set_counting(bool on) { counting_.store(on, std::memory_order_relaxed); }
  void stop() { stopping_.store(true, std::memory_order_relaxed); }
  bool ended() const;  // by stop(), the end of a pass or an error, and nothing is in flight
  bool failed() const { return failed_.load(std::memory_order_relaxed); }
  Status drain();  // waits until ended()

  LoopCounts counts() const;
  std::uint64_t counted_bytes() const;
  // Blocks issued in the sequential stream of writes, or of reads if the mode has no writes.
  std::uint64_t issued_blocks() const;
  std::uint64_t checked_bytes() const { return checked_bytes_.load(std::memory_order_relaxed); }

 private:
  struct Slot {
    ClosedLoop* loop = nullptr;
    aio::IoRequest request;
    std::span<std::byte> buffer;
    int lane = 0;
    Random random{0};
  };
  // Counters are kept in a few lanes, because a slot tends to stay on one IO thread.
  struct alignas(64) Lane {
    mutable std::mutex mutex;
    LoopCounts counts;  // guarded by mutex
  };

  static void on_done(aio::IoRequest& request, void* context) noexcept;
  void complete(Slot& slot) noexcept;
  bool issue(Slot& slot) noexcept;  // false: no next block
  bool check(const Slot& slot) noexcept;
  void fail(Error error) noexcept;
  void retire() noexcept;

  AioSession& session_;
  const LoopJob job_;
  const std::uint64_t block_bytes_;
  const std::uint64_t block_count_;
  std::vector<Lane> lanes_;
  std::unique_ptr<Slot[]> slots_;
  std::atomic<bool> counting_{false};
  std::atomic<bool> stopping_{false};
  std::atomic<bool> failed_{false};

  // Written for every block, unlike the members above.
  alignas(64) std::atomic<std::uint64_t> next_read_;
  std::atomic<std::uint64_t> next_write_;
  std::atomic<std::uint64_t> checked_bytes_{0};

  mutable std::mutex mutex_;
  std::condition_variable ended_;
  Status first_error_;  // guarded by mutex_
  int active_ = 0;      // slots in flight; guarded by mutex_
};

}  // namespace sluice::bench
