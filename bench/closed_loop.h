// ClosedLoop: keeps every buffer of a session in flight. The completion callback of a block issues
// the next one, so the IO thread needs no other thread to continue.
//
// Threads: methods from one thread; callbacks run on the backend's threads.
// Errors:  the first failed transfer or wrong byte stops the loop; drain() returns it.
// The session must outlive the loop; the destructor stops and drains.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "aio/io_request.h"
#include "bench/aio_mode.h"
#include "bench/aio_session.h"
#include "bench/random.h"

namespace sluice::bench {

// LatencyHistogram: counts durations in log-linear buckets; percentiles are within 1/64 (1.6%).
//
// Fixed size, no allocation, about 2 ns a record.
//
// Threads: none of its own; guard it, or keep one per thread and merge them.
class LatencyHistogram {
 public:
  void record(std::int64_t nanoseconds);
  void merge(const LatencyHistogram& other);

  // The smallest duration that at least `percent` of the records do not exceed, rounded up to its
  // bucket's upper end; 0 when empty. percent in (0, 100].
  std::int64_t percentile_ns(double percent) const;

 private:
  // 64 buckets for each power of two: below 64 ns exact, above a relative width of 1/64.
  static constexpr int kSubBits = 6;
  static constexpr int kBuckets = (64 - kSubBits) << kSubBits;
  static int bucket_of(std::uint64_t value);
  static std::int64_t upper_end_of(int bucket);

  std::array<std::uint64_t, kBuckets> buckets_{};
  std::uint64_t count_ = 0;
  std::int64_t max_ns_ = 0;
};

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
  LatencyHistogram latency;
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

// The pattern that --verify writes: every 8-byte word is a function of the seed and of its own
// offset in the file.
//
// For one seed the function is a bijection of offsets, so no two words of a file are alike. A lost,
// torn, stale or misplaced write cannot look right, and a misplaced word shows where it came from.
// The bytes look random, so drives and hypervisors that compress or drop zeros gain nothing.
//
// data.size() and offset_bytes are multiples of 8.
void fill_pattern(std::span<std::byte> data, std::uint64_t seed, std::uint64_t offset_bytes);

struct PatternMismatch {
  std::uint64_t offset_bytes = 0;  // the first wrong byte in the file
  std::uint8_t expected = 0;
  std::uint8_t got = 0;
  // The file offset that the found word belongs to.
  std::optional<std::uint64_t> belongs_to_bytes;
};

// The first byte of `data`, which was read from offset_bytes, that differs from the pattern.
// file_bytes bounds where misplaced data may come from.
std::optional<PatternMismatch> find_mismatch(std::span<const std::byte> data, std::uint64_t seed,
                                             std::uint64_t offset_bytes, std::uint64_t file_bytes);

// "FILE at offset 4096: expected byte 0x3f, got 0x00 (the data of offset 1M)"
std::string describe(const PatternMismatch& mismatch, const std::string& path);

}  // namespace sluice::bench
