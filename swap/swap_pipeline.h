// SwapPipeline: read -> compute -> write over a sequence of a store's records, with a fixed set of
// pinned buffers. The drive reads record k+1.. and writes record k-1.. while the caller computes on
// record k (the swapping of "ZeRO-Infinity", SC 2021, section 6.2).
//
//   pipeline->expect(records);                      // may be called much earlier: starts reading
//   for (...) {
//     SLUICE_ASSIGN_OR_RETURN(auto loan, pipeline->next());
//     SLUICE_RETURN_IF_ERROR(loan.work(executor, kernel));   // check, compute, seal
//     pipeline->write(std::move(loan));
//   }
//   SLUICE_RETURN_IF_ERROR(pipeline->drain());
//
// Memory:  `buffers` leases of the pool, all taken in create() or none, and 2 bytes per record of
//          the store. Later only the sequence of expected records (4 bytes each) is allocated.
// Order:   next() returns the records exactly as expected. A record whose write is in flight is
//          never read. Its buffer is passed on without a read, but only after the write has
//          completed, because computing would change what the drive is still fetching. A record may
//          be expected again at any time, even while it is on loan, but next() must not return it
//          until that loan is over.
// Threads: expect(), next(), write(), release() and drain() from one thread at a time; cancel() and
//          stats() from any. Completion callbacks start the next transfers, so these overlap with
//          the caller's work without an extra thread.
// Errors:  the first failed transfer ends it: no more transfers start. Both next() and drain()
//          return that error, which begins with the record's name, once transfers in flight have
//          ended. Calling cancel() does the same with kCancelled. This cannot be undone: records
//          that were computed but not written are lost.
// Shutdown: the destructor cancels and waits for transfers in flight; no loan may exist by then.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string_view>

#include "aio/executor.h"
#include "aio/pinned_pool.h"
#include "aio/result.h"
#include "swap/record_image.h"
#include "swap/state_store.h"
#include "swap/swap_schedule.h"

namespace sluice::swap {

// What the caller waited for, and how much was transferred. Times are from the backend's clock.
struct SwapStats {
  std::uint64_t records_read = 0;
  std::uint64_t records_forwarded = 0;  // served from a buffer instead of the disk
  std::uint64_t records_written = 0;
  std::uint64_t bytes_read = 0;  // headers and padding included, counted from completions
  std::uint64_t bytes_written = 0;
  std::int64_t wait_read_ns = 0;   // next(): its record was being read
  std::int64_t wait_write_ns = 0;  // next(), drain(): only writes could make progress
  std::int64_t compute_ns = 0;     // records were on loan, and the caller was not waiting
};

class SwapPipeline {
 private:
  struct Slot;

 public:
  enum class Order : std::uint8_t {
    kMixed,   // reads and writes whenever a buffer allows
    kBursts,  // some records' reads, then some records' writes: for half-duplex drives
  };
  struct Options {
    int buffers = 4;  // 2 .. kMaxBuffers; 3 keep reading, computing and writing busy at once
    Order order = Order::kMixed;
    int burst_records = 0;  // kBursts; 0: half of the buffers
  };
  static constexpr int kMaxBuffers = 1024;

  // A record's buffer, for the caller to work on. Destroying it returns the buffer and drops all
  // changes: the disk keeps the record as it was.
  class Loan {
   public:
    Loan() = default;
    Loan(Loan&& other) noexcept;
    Loan& operator=(Loan&& other) noexcept;
    ~Loan();

    RecordId record() const;
    RecordImage& image() const;
    // For RecordWork: the generation to check (empty if the record came from a buffer, or was
    // checked), and the generation to seal with.
    std::optional<std::uint64_t> check_generation() const;
    std::uint64_t next_generation() const;

    // Checks, processes and seals the whole record; an error begins with the record's name.
    Status work(aio::Executor& executor,
                const std::function<void(int chunk, std::span<std::byte>)>& work);
    // Only checks the record.
    Status check(aio::Executor& executor);

   private:
    friend class SwapPipeline;
    Loan(SwapPipeline* pipeline, Slot* slot) : pipeline_(pipeline), slot_(slot) {}
    SwapPipeline* pipeline_ = nullptr;
    Slot* slot_ = nullptr;
  };

  // kInvalidArgument: the pool's buffers cannot hold the store's largest image; the error names the
  // required size. kOutOfMemory: the pool has fewer than `buffers` free buffers now. Store and pool
  // must outlive the pipeline.
  static Result<std::unique_ptr<SwapPipeline>> create(StateStore& store, aio::PinnedPool& pool,
                                                      const Options& options);
  ~SwapPipeline();
  SwapPipeline(const SwapPipeline&) = delete;
  SwapPipeline& operator=(const SwapPipeline&) = delete;

  // Appends to the sequence, and reads ahead as far as the buffers allow.
  void expect(std::span<const RecordId> records);
  std::size_t expected() const;  // not yet returned by next()

  // Waits for the next record. At most buffers - 1 other loans may exist, and a record must be
  // expected (both checked).
  Result<Loan> next();

  // Writes the record, sealed with next_generation() (checked), as soon as the order allows; its
  // buffer is free after that.
  void write(Loan loan);
  // Drops the loan like its destructor: the record was not changed, or its changes are not needed.
  void release(Loan loan);

  // Waits until every write has completed. Expected records stay expected, and are read ahead.
  Status drain();
  void cancel() noexcept;

  SwapStats stats() const;

 private:
  SwapPipeline(StateStore& store, const Options& options);

  // All *_locked() need mutex_ held.
  enum class Activity : std::uint8_t { kNone, kWaitForRead, kCompute, kWaitForWrite };
  using Lock = std::unique_lock<std::mutex>;

  void start_transfers(Lock& lock);
  void start(const SwapSchedule::Transfer& transfer);
  static void on_done(RecordIo& io, void* context) noexcept;
  void stop_locked(Error error);
  void give_back(Slot& slot, bool write);
  // Waits until `done`, or until the pipeline has stopped and nothing is in flight.
  template <typename Done>
  Status wait(Lock& lock, const Done& done);
  bool quiet_locked() const;
  Activity activity_locked() const;
  void account_locked();
  SwapStats stats_at_locked(std::int64_t now_ns) const;

  StateStore& store_;
  const Options options_;
  std::unique_ptr<Slot[]> slots_;  // NOLINT(modernize-avoid-c-arrays): `buffers` of them

  mutable std::mutex mutex_;         // guards all members below
  std::condition_variable changed_;  // a transfer has ended
  SwapSchedule schedule_;
  int starting_ = 0;      // threads in start_transfers() that are passing transfers to the store
  Status failure_;        // the first failure, which stopped the pipeline
  bool waiting_ = false;  // in next() or drain()
  bool draining_ = false;
  SwapStats stats_;
  Activity activity_ = Activity::kNone;  // since activity_since_ns_, not yet in stats_
  std::int64_t activity_since_ns_ = 0;
};

}  // namespace sluice::swap
