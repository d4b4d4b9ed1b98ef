#include "aio/io_queue.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "aio/block.h"
#include "aio/check.h"
#include "aio/log.h"
#include "aio/retry_policy.h"
#include "aio/units.h"

namespace sluice::aio {

Result<std::unique_ptr<IoQueue>> IoQueue::create(IoBackend& backend, const Options& options) {
  const auto reject = [](const std::string& what) {
    return Error(ErrorCode::kInvalidArgument, what);
  };
  if (options.block_bytes < 4 * kKiB || options.block_bytes > kGiB ||
      options.block_bytes % (4 * kKiB) != 0) {
    return reject("the block size must be a multiple of 4096 from 4K to 1G, not " +
                  format_bytes(options.block_bytes));
  }
  if (options.queue_depth < 1 || options.queue_depth > kMaxQueueDepth) {
    return reject("the queue depth must be 1 to " + std::to_string(kMaxQueueDepth) + ", not " +
                  std::to_string(options.queue_depth));
  }
  if (options.max_retries < 0) return reject("the number of retries must not be negative");
  SLUICE_ASSIGN_OR_RETURN(auto bounces, BounceBuffers::create());
  return std::unique_ptr<IoQueue>(new IoQueue(backend, options, std::move(bounces)));
}

IoQueue::IoQueue(IoBackend& backend, const Options& options, BounceBuffers bounces)
    : backend_(backend),
      options_(options),
      bounces_(std::move(bounces)),
      blocks_(new Block[static_cast<std::size_t>(options.queue_depth)]) {
  for (int i = options.queue_depth - 1; i >= 0; --i) {
    Block& block = blocks_[static_cast<std::size_t>(i)];
    block.queue = this;
    block.on_done = &IoQueue::on_block_done;
    block.next_free = std::exchange(free_blocks_, &block);
  }
}

IoQueue::~IoQueue() {
  std::unique_lock lock(mutex_);
  for (IoRequest* request = first_pending_; request != nullptr; request = request->next_) {
    request->stopped_ = true;
    if (request->status_.ok()) {
      request->status_ = Error(ErrorCode::kCancelled, "the IO queue was shut down");
    }
  }
  start_blocks(lock);
  while (first_pending_ != nullptr || blocks_in_flight_ > 0 || ends_running_ > 0) {
    lock.unlock();
    const PumpResult pumped = backend_.pump();
    lock.lock();
    if (pumped == PumpResult::kThreaded && (blocks_in_flight_ > 0 || ends_running_ > 0)) {
      ++waiters_;
      ended_.wait(lock);
      --waiters_;
    }
    SLUICE_CHECK(pumped != PumpResult::kIdle || blocks_in_flight_ == 0,
                 "a backend in virtual time lost operations");
  }
}

// ---- submission ------------------------------------------------------------------------------

void IoQueue::enqueue_locked(IoRequest& request) {
  SLUICE_CHECK(!request.in_flight_, "an IoRequest was submitted twice");
  request.status_ = Status();
  request.started_bytes_ = 0;
  request.blocks_in_flight_ = 0;
  request.stopped_ = false;
  request.in_flight_ = true;
  request.pending_ = true;
  request.next_ = nullptr;
  request.submitted_ns_ = backend_.clock().now_ns();
  request.begin_ns_ = IoRequest::kNotBegun;
  if (request.kind_ != IoKind::kNop) {
    const std::uint64_t size = request.target_->size_bytes();
    if (request.offset_bytes_ > size || request.length_bytes_ > size - request.offset_bytes_) {
      request.stopped_ = true;
      request.status_ =
          Error(ErrorCode::kInvalidArgument,
                std::string(to_string(request.kind_)) + " of " +
                    std::to_string(request.length_bytes_) + " bytes at offset " +
                    std::to_string(request.offset_bytes_) + " reaches beyond the end of " +
                    request.target_->path() + ", which has " + std::to_string(size) + " bytes");
    }
  }
  (first_pending_ == nullptr ? first_pending_ : last_pending_->next_) = &request;
  last_pending_ = &request;
}

void IoQueue::submit(IoRequest& request) noexcept {
  std::unique_lock lock(mutex_);
  enqueue_locked(request);
  start_blocks(lock);
}

void IoQueue::cancel(IoRequest& request) noexcept {
  std::unique_lock lock(mutex_);
  if (!request.in_flight_ || !request.pending_) return;
  request.stopped_ = true;
  if (request.status_.ok()) {
    request.status_ =
        Error(ErrorCode::kCancelled, std::string(to_string(request.kind_)) + " was cancelled");
  }
  start_blocks(lock);
}

const Status& IoQueue::wait(IoRequest& request) {
  SLUICE_CHECK(request.callback_ == nullptr, "a request that ends in a callback is not waited for");
  std::unique_lock lock(mutex_);
  while (request.in_flight_) {
    lock.unlock();
    const PumpResult pumped = backend_.pump();
    lock.lock();
    if (pumped == PumpResult::kThreaded && request.in_flight_) {
      ++waiters_;
      ended_.wait(lock);
      --waiters_;
    }
    SLUICE_CHECK(pumped != PumpResult::kIdle || !request.in_flight_,
                 "virtual time ran out of events while a request was waited for: a deadlock");
  }
  return request.status_;
}

Status IoQueue::read(const IoTarget& target, std::uint64_t offset_bytes,
                     std::span<std::byte> data) {
  IoRequest request;
  request.prepare_read(target, offset_bytes, data);
  submit(request);
  return wait(request);
}

Status IoQueue::write(const IoTarget& target, std::uint64_t offset_bytes,
                      std::span<const std::byte> data) {
  IoRequest request;
  request.prepare_write(target, offset_bytes, data);
  submit(request);
  return wait(request);
}

Status IoQueue::sync(const IoTarget& target) {
  IoRequest request;
  request.prepare_sync(target);
  submit(request);
  return wait(request);
}

// ---- splitting into blocks -------------------------------------------------------------------

// Releases the lock, submits every block that can start to the backend, and takes the lock again.
void IoQueue::start_blocks(std::unique_lock<std::mutex>& lock) {
  StartBatch batch;
  while (const std::size_t count = fill_locked(batch)) {
    lock.unlock();
    std::array<IoOp*, kStartBatch> ops;
    for (std::size_t i = 0; i < count; ++i) {
      Block& block = *batch[i];
      if (block.copies_in_first()) block.copy_in();
      ops[i] = &block;
    }
    backend_.submit({ops.data(), count});
    lock.lock();
    if (count < kStartBatch) break;
  }
}

std::size_t IoQueue::fill_locked(StartBatch& batch) {
  std::size_t count = 0;
  const auto pop = [this](IoRequest& request) {
    first_pending_ = request.next_;
    request.pending_ = false;
  };
  std::int64_t now_ns = -1;
  while (first_pending_ != nullptr && free_blocks_ != nullptr && count < batch.size()) {
    IoRequest& request = *first_pending_;
    if (request.stopped_ && request.blocks_in_flight_ > 0) {
      pop(request);  // ends with its last block
      continue;
    }
    Block& block = *free_blocks_;
    // false: a bounce buffer or sector that it needs is in use by a block in flight.
    if (!start_block_locked(request, block)) break;
    free_blocks_ = block.next_free;
    if (now_ns < 0) now_ns = backend_.clock().now_ns();
    block.used = true;
    block.submitted_ns = now_ns;
    if (request.begin_ns_ == IoRequest::kNotBegun) request.begin_ns_ = now_ns;
    block.request = &request;
    ++request.blocks_in_flight_;
    ++blocks_in_flight_;
    const std::uint64_t whole =
        request.kind_ == IoKind::kSync ? request.target_->files().size() : request.length_bytes_;
    if (request.stopped_ || request.started_bytes_ == whole) pop(request);
    batch[count++] = &block;
  }
  return count;
}

bool IoQueue::start_block_locked(IoRequest& request, Block& block) {
  if (request.stopped_ || (request.kind_ != IoKind::kSync && request.length_bytes_ == 0)) {
    block.make_end_only();
    return true;
  }
  if (request.kind_ == IoKind::kSync) {
    block.make_sync(*request.target_->files()[request.started_bytes_]);
    ++request.started_bytes_;
    return true;
  }
  const std::uint64_t rest = request.length_bytes_ - request.started_bytes_;
  const Extent extent =
      request.target_->locate(request.offset_bytes_ + request.started_bytes_, rest);
  const std::uint64_t started =
      block.make_transfer(request.kind_, extent, request.data_ + request.started_bytes_,
                          options_.block_bytes, bounces_);
  request.started_bytes_ += started;
  return started > 0;
}

// ---- completion ------------------------------------------------------------------------------

void IoQueue::on_block_done(IoOp& op, std::int64_t result) noexcept {
  auto& block = static_cast<Block&>(op);
  block.queue->finish_transfer(block, result);
}

// Decides what a result means for its block. The bytes of a finished read are copied to the caller
// here, outside the lock.
Verdict IoQueue::judge(Block& block, std::int64_t result) const {
  const std::uint64_t moved = result > 0 ? static_cast<std::uint64_t>(result) : 0;
  block.moved_bytes += moved;
  if (block.phase == Block::Phase::kEndOnly)
    return Verdict::kDone;  // a no-op: nothing could have failed
  if (result < 0 || block.moved_bytes < block.needed_bytes) {
    const bool advanced = moved >= block.file->offset_alignment_bytes();
    if (advanced) block.retries = 0;
    return judge_incomplete({.kind = block.kind,
                             .result = result,
                             .advanced = advanced,
                             .retries = block.retries,
                             .max_retries = options_.max_retries});
  }
  if (block.phase == Block::Phase::kReadToModify) return Verdict::kNextPhase;
  if (block.bounce >= 0 && block.kind == IoKind::kRead) block.copy_out();
  return Verdict::kDone;
}

void IoQueue::count_locked(const Block& block, std::int64_t result) {
  if (result <= 0 || block.phase == Block::Phase::kEndOnly || block.kind == IoKind::kSync) return;
  IoDirectionStats& direction = block.kind == IoKind::kRead ? stats_.read : stats_.write;
  ++direction.blocks;
  direction.device_bytes += static_cast<std::uint64_t>(result);
  if (block.moved_bytes < block.needed_bytes) ++stats_.short_transfers;
}

// Runs on the backend's threads. A block belongs to this thread until free_block_locked() frees it.
void IoQueue::finish_transfer(Block& block, std::int64_t result) noexcept {
  const Verdict verdict = judge(block, result);
  const std::int64_t now_ns = backend_.clock().now_ns();
  std::unique_lock lock(mutex_);
  count_locked(block, result);
  switch (verdict) {
    case Verdict::kResume:
      block.aim_at_rest();
      break;
    case Verdict::kRetry:
      ++stats_.retries;
      block.aim_at_rest();
      block.delay_ns = retry_delay_ns(result, block.retries);
      ++block.retries;
      break;
    case Verdict::kNextPhase:
      block.turn_into_write();
      break;
    case Verdict::kFail:
      block.request->stopped_ = true;
      if (block.request->status_.ok()) {
        block.request->status_ = transfer_error(block, result, block.retries);
      }
      end_block(block, now_ns, lock);
      return;
    case Verdict::kDone:
      end_block(block, now_ns, lock);
      return;
  }
  block.submitted_ns = now_ns;
  lock.unlock();
  if (verdict == Verdict::kRetry && result < 0 && result != -EINTR && result != -EAGAIN) {
    log::warning_once("retry:" + block.file->path() + std::to_string(result),
                      transfer_error(block, result, 0).message() +
                          " (retrying; further ones on this file are only counted)");
  }
  IoOp* again = &block;
  backend_.submit({&again, 1});
}

// Frees the block, ends its request if this was the last block, and starts what can start now. Only
// then does it run the callback, so that the drive does not wait for it.
void IoQueue::end_block(Block& block, std::int64_t now_ns, std::unique_lock<std::mutex>& lock) {
  IoRequest& request = *block.request;
  free_block_locked(block);
  const bool ended = request.blocks_in_flight_ == 0 && !request.pending_;
  const IoRequest::Callback callback = ended ? request.callback_ : nullptr;
  void* const context = request.context_;
  if (ended) {
    request.latency_ns_ = now_ns - request.submitted_ns_;
    end_request_locked(request);
    if (options_.observer != nullptr) options_.observer->on_end(request, now_ns);
  }
  // From here on the owner may destroy a request without a callback. ends_running_ keeps the queue
  // from being destroyed as well.
  ++ends_running_;
  start_blocks(lock);
  if (callback != nullptr) {
    lock.unlock();
    callback(request, context);
    lock.lock();
  }
  --ends_running_;
  if (waiters_ > 0) ended_.notify_all();
}

void IoQueue::free_block_locked(Block& block) {
  if (block.bounce >= 0) {
    bounces_.give_back(block.bounce);
    ++stats_.bounced_blocks;
    block.bounce = -1;
  }
  --block.request->blocks_in_flight_;
  --blocks_in_flight_;
  block.used = false;
  block.request = nullptr;
  block.next_free = std::exchange(free_blocks_, &block);
}

void IoQueue::end_request_locked(IoRequest& request) {
  request.in_flight_ = false;
  if (request.status_.ok()) {
    if (request.kind_ == IoKind::kRead || request.kind_ == IoKind::kWrite) {
      IoDirectionStats& direction = request.kind_ == IoKind::kRead ? stats_.read : stats_.write;
      ++direction.requests;
      direction.payload_bytes += request.length_bytes_;
    }
  } else if (request.status_.error().code() != ErrorCode::kCancelled) {
    ++stats_.failed_requests;
  }
}

// ---- state -----------------------------------------------------------------------------------

IoStats IoQueue::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

void IoQueue::reset_stats() {
  const std::lock_guard lock(mutex_);
  stats_ = IoStats();
}

std::optional<IoQueue::InFlight> IoQueue::oldest_in_flight() const {
  const std::lock_guard lock(mutex_);
  const Block* oldest = nullptr;
  for (int i = 0; i < options_.queue_depth; ++i) {
    const Block& block = blocks_[static_cast<std::size_t>(i)];
    const bool older = oldest == nullptr || block.submitted_ns < oldest->submitted_ns;
    if (block.used && block.file != nullptr && older) oldest = &block;
  }
  if (oldest == nullptr) return std::nullopt;
  return InFlight{.kind = oldest->kind,
                  .path = oldest->file->path(),
                  .offset_bytes = oldest->offset_bytes,
                  .length_bytes = oldest->length_bytes,
                  .age_ns = backend_.clock().now_ns() - oldest->submitted_ns};
}

}  // namespace sluice::aio
