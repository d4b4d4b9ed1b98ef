// IoQueue: splits requests of any size into blocks, keeps them in flight up to the queue depth, and
// checks every result.
//
// A request is split into blocks of at most block_bytes; up to queue_depth blocks are in flight, in
// the order of submission. On direct files the aligned middle goes straight between the drive and
// the caller's memory. A head or tail that is not a whole sector, and data at an unaligned address,
// go through a few bounce buffers. A write of part of a sector reads it first; two requests of one
// queue that share a sector take turns.
//
// Short transfers are resumed at the next byte. EINTR and EAGAIN, zero-byte results, and errors a
// drive may recover from (EIO, ENOSPC, ...) are retried with growing delays within max_retries. A
// failed sync is never retried, because the kernel may have dropped the data that it failed to
// write. The first error ends the request and names operation, path, offset, length and errno.
//
// Memory:  queue_depth blocks and the bounce buffers, taken in the constructor; submit() allocates
//          nothing.
// Threads: all methods from any thread, but wait() and the blocking helpers not from a callback.
// Order:   none between requests that are in flight together: a caller that needs one must wait for
//          the first request.
// Shutdown: the destructor cancels blocks that have not started and waits for the others; each
//           request still gets its completion.
#pragma once

#include <array>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "aio/bounce_buffers.h"
#include "aio/io_backend.h"
#include "aio/io_observer.h"
#include "aio/io_request.h"
#include "aio/io_target.h"
#include "aio/result.h"

namespace sluice::aio {

// Counts since the queue was created, or since reset_stats().
struct IoDirectionStats {
  std::uint64_t requests = 0;       // ended without error
  std::uint64_t payload_bytes = 0;  // by these requests
  std::uint64_t blocks = 0;         // transfers completed by the backend, resumed ones included
  std::uint64_t device_bytes = 0;  // all bytes moved: payload, padding, sectors read to be modified
};

struct IoStats {
  IoDirectionStats read;
  IoDirectionStats write;
  std::uint64_t short_transfers = 0;  // resumed
  std::uint64_t retries = 0;         // after EINTR, EAGAIN, nothing transferred, or a drive's error
  std::uint64_t bounced_blocks = 0;  // went through a bounce buffer
  std::uint64_t failed_requests = 0;  // without cancelled ones
};

struct Block;
enum class Verdict : std::uint8_t;

class IoQueue {
 public:
  struct Options {
    std::uint64_t block_bytes = 1 << 20;  // 4 KiB .. 1 GiB, a multiple of 4096
    int queue_depth = 32;                 // blocks in flight in total, 1 .. kMaxQueueDepth
    int max_retries = 8;                  // per block, until it makes progress again
    IoObserver* observer = nullptr;       // for all requests; must outlive the queue
  };
  static constexpr int kMaxQueueDepth = 4096;

  // kInvalidArgument names the option that is out of range. `backend` must outlive the queue.
  static Result<std::unique_ptr<IoQueue>> create(IoBackend& backend, const Options& options);
  ~IoQueue();
  IoQueue(const IoQueue&) = delete;
  IoQueue& operator=(const IoQueue&) = delete;

  // Starts a prepared request. Its callback, or wait(), reports its end. An invalid request
  // (outside the target, say) ends with kInvalidArgument like any other failure.
  void submit(IoRequest& request) noexcept;

  // Waits until the request has ended (returns immediately if it has) and returns its status. Only
  // for requests without a callback: a callback may still be running when its request has ended.
  const Status& wait(IoRequest& request);

  // Starts no more blocks of the request. It ends with kCancelled when its blocks in flight have
  // completed, or normally if no block was left to start. No effect on a request that is not in
  // flight.
  void cancel(IoRequest& request) noexcept;

  // Run one request and wait for it.
  Status read(const IoTarget& target, std::uint64_t offset_bytes, std::span<std::byte> data);
  Status write(const IoTarget& target, std::uint64_t offset_bytes, std::span<const std::byte> data);
  Status sync(const IoTarget& target);

  IoStats stats() const;
  void reset_stats();

  // The block that has been in flight longest, for watchdogs.
  struct InFlight {
    IoKind kind;
    std::string path;
    std::uint64_t offset_bytes;
    std::uint32_t length_bytes;
    std::int64_t age_ns;
  };
  std::optional<InFlight> oldest_in_flight() const;

  const Options& options() const { return options_; }
  IoBackend& backend() { return backend_; }

 private:
  // Blocks to submit to the backend after the lock is released.
  static constexpr std::size_t kStartBatch = 64;
  using StartBatch = std::array<Block*, kStartBatch>;

  IoQueue(IoBackend& backend, const Options& options, BounceBuffers bounces);

  // All *_locked() need mutex_ held.
  void enqueue_locked(IoRequest& request);
  std::size_t fill_locked(StartBatch& batch);
  bool start_block_locked(IoRequest& request, Block& block);
  void count_locked(const Block& block, std::int64_t result);
  void free_block_locked(Block& block);
  void end_request_locked(IoRequest& request);
  void start_blocks(std::unique_lock<std::mutex>& lock);

  static void on_block_done(IoOp& op, std::int64_t result) noexcept;
  void finish_transfer(Block& block, std::int64_t result) noexcept;
  Verdict judge(Block& block, std::int64_t result) const;
  void end_block(Block& block, std::int64_t now_ns, std::unique_lock<std::mutex>& lock);

  IoBackend& backend_;
  const Options options_;

  mutable std::mutex mutex_;       // guards all members below
  std::condition_variable ended_;  // a request or a callback has ended
  BounceBuffers bounces_;
  std::unique_ptr<Block[]> blocks_;  // NOLINT(modernize-avoid-c-arrays): queue_depth of them
  Block* free_blocks_ = nullptr;
  IoRequest* first_pending_ = nullptr;  // not fully split yet, oldest first
  IoRequest* last_pending_ = nullptr;
  int blocks_in_flight_ = 0;
  int ends_running_ = 0;  // threads in end_block(), callbacks included
  int waiters_ = 0;
  IoStats stats_;
};

}  // namespace sluice::aio
