#include "aio/io_queue.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "aio/check.h"
#include "aio/log.h"
#include "aio/retry_policy.h"
#include "aio/units.h"

namespace sluice::aio {

// One block in flight: the transfer the backend is doing now, and what it is part of.
struct IoQueue::Slot : IoOp {
  enum class Phase : std::uint8_t {
    kTransfer,
    kReadToModify,  // of the sector a write covers in part; the write of the sector follows
    kEndOnly,       // no transfer: carries the end of a request to the backend's thread
  };

  IoQueue* queue = nullptr;
  IoRequest* request = nullptr;
  Phase phase = Phase::kTransfer;

  // The whole transfer; IoOp's offset, data and length are what is left of it.
  std::uint64_t begin_bytes = 0;
  std::byte* memory = nullptr;
  std::uint32_t total_bytes = 0;
  std::uint32_t needed_bytes = 0;  // enough: the rest would lie behind the end of the file
  std::uint64_t moved_bytes = 0;

  // Through a bounce buffer: [skip, skip + user_length) of it is the caller's.
  int bounce = -1;
  std::byte* user_data = nullptr;
  std::uint32_t user_skip = 0;
  std::uint32_t user_length = 0;

  int retries = 0;
  bool used = false;
  std::int64_t submitted_ns = 0;
  Slot* next_free = nullptr;

  void aim(std::uint64_t offset, std::byte* to, std::uint32_t length, std::uint32_t needed) {
    begin_bytes = offset;
    memory = to;
    total_bytes = length;
    needed_bytes = needed;
    moved_bytes = 0;
    retries = 0;
    offset_bytes = offset;
    data = to;
    length_bytes = length;
    delay_ns = 0;
  }
  void copy_in() const { std::memcpy(memory + user_skip, user_data, user_length); }
  void copy_out() const { std::memcpy(user_data, memory + user_skip, user_length); }
};

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
  SLUICE_ASSIGN_OR_RETURN(auto bounce, PageMemory::map(kBounceCount * kBounceBytes, false));
  return std::unique_ptr<IoQueue>(new IoQueue(backend, options, std::move(bounce)));
}

IoQueue::IoQueue(IoBackend& backend, const Options& options, PageMemory bounce_memory)
    : backend_(backend),
      options_(options),
      bounce_memory_(std::move(bounce_memory)),
      slots_(new Slot[static_cast<std::size_t>(options.queue_depth)]) {
  for (int i = options.queue_depth - 1; i >= 0; --i) {
    Slot& slot = slots_[static_cast<std::size_t>(i)];
    slot.queue = this;
    slot.on_done = &IoQueue::on_block_done;
    slot.next_free = std::exchange(free_slots_, &slot);
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
  while (first_pending_ != nullptr || blocks_in_flight_ > 0 || callbacks_running_ > 0) {
    lock.unlock();
    const PumpResult pumped = backend_.pump();
    lock.lock();
    if (pumped == PumpResult::kThreaded && (blocks_in_flight_ > 0 || callbacks_running_ > 0)) {
      ++waiters_;
      ended_.wait(lock);
      --waiters_;
    }
    SLUICE_CHECK(pumped != PumpResult::kIdle || blocks_in_flight_ == 0,
                 "a backend in virtual time lost operations");
  }
}

// ---- requests in -----------------------------------------------------------------------------

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

void IoQueue::submit_all(std::span<IoRequest* const> requests) noexcept {
  std::unique_lock lock(mutex_);
  for (IoRequest* request : requests) enqueue_locked(*request);
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

// ---- requests to blocks ----------------------------------------------------------------------

// Releases the lock, hands every block that can start to the backend, and takes the lock again.
void IoQueue::start_blocks(std::unique_lock<std::mutex>& lock) {
  StartBatch batch;
  while (const std::size_t count = fill_locked(batch)) {
    lock.unlock();
    std::array<IoOp*, kStartBatch> ops;
    for (std::size_t i = 0; i < count; ++i) {
      Slot& slot = *batch[i];
      const bool copies = slot.kind == IoKind::kWrite && slot.bounce >= 0;
      if (copies && slot.phase == Slot::Phase::kTransfer) slot.copy_in();
      ops[i] = &slot;
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
  while (first_pending_ != nullptr && free_slots_ != nullptr && count < batch.size()) {
    IoRequest& request = *first_pending_;
    if (request.stopped_ && request.blocks_in_flight_ > 0) {
      pop(request);  // its last block ends it
      continue;
    }
    Slot& slot = *free_slots_;
    // false: what it needs (a bounce buffer, a sector) is in use by a block that is in flight.
    if (!start_block_locked(request, slot)) break;
    free_slots_ = slot.next_free;
    if (now_ns < 0) now_ns = backend_.clock().now_ns();
    slot.used = true;
    slot.submitted_ns = now_ns;
    slot.request = &request;
    ++request.blocks_in_flight_;
    ++blocks_in_flight_;
    const std::uint64_t whole =
        request.kind_ == IoKind::kSync ? request.target_->files().size() : request.length_bytes_;
    if (request.stopped_ || request.started_bytes_ == whole) pop(request);
    batch[count++] = &slot;
  }
  return count;
}

bool IoQueue::start_block_locked(IoRequest& request, Slot& slot) {
  slot.bounce = -1;
  if (request.stopped_ || (request.kind_ != IoKind::kSync && request.length_bytes_ == 0)) {
    slot.phase = Slot::Phase::kEndOnly;
    slot.kind = IoKind::kNop;
    slot.file = nullptr;
    slot.aim(0, nullptr, 0, 0);
    return true;
  }
  slot.phase = Slot::Phase::kTransfer;
  slot.kind = request.kind_;
  if (request.kind_ == IoKind::kSync) {
    slot.file = request.target_->files()[request.started_bytes_];
    slot.aim(0, nullptr, 0, 0);
    ++request.started_bytes_;
    return true;
  }

  const std::uint64_t rest = request.length_bytes_ - request.started_bytes_;
  Extent extent = request.target_->locate(request.offset_bytes_ + request.started_bytes_, rest);
  std::byte* data = request.data_ + request.started_bytes_;
  const std::uint64_t sector = extent.file->offset_alignment_bytes();
  const std::uint64_t into_sector = extent.offset_bytes % sector;
  slot.file = extent.file;
  if (into_sector != 0 || extent.length_bytes < sector) {
    // A head or a tail that is no whole sector (never on buffered files, whose sector is 1 byte).
    extent.length_bytes = std::min(extent.length_bytes, sector - into_sector);
    slot.user_data = data;
    if (!take_bounce_locked(slot, extent)) return false;
  } else {
    extent.length_bytes = align_down(std::min(extent.length_bytes, options_.block_bytes), sector);
    const auto address = reinterpret_cast<std::uintptr_t>(data);
    if (address % extent.file->memory_alignment_bytes() != 0) {
      extent.length_bytes = std::min(extent.length_bytes, kBounceBytes);
      slot.user_data = data;
      if (!take_bounce_locked(slot, extent)) return false;
    } else {
      const auto length = static_cast<std::uint32_t>(extent.length_bytes);
      slot.aim(extent.offset_bytes, data, length, length);
    }
  }
  request.started_bytes_ += extent.length_bytes;
  return true;
}

// Aims the slot at the whole sectors around the extent, through a bounce buffer. A write of part of
// a sector holds that sector: a second one must not read it before the first has written it.
bool IoQueue::take_bounce_locked(Slot& slot, const Extent& extent) {
  const std::uint64_t sector = extent.file->offset_alignment_bytes();
  SLUICE_CHECK(sector <= kBounceBytes,
               "a file system asks for sectors larger than a bounce buffer");
  const std::uint64_t begin = align_down(extent.offset_bytes, sector);
  const std::uint64_t end = align_up(extent.offset_bytes + extent.length_bytes, sector);
  const bool partial = end - begin != extent.length_bytes;
  const bool modifies = slot.kind == IoKind::kWrite && partial;

  int free = -1;
  for (int i = 0; i < kBounceCount; ++i) {
    const Slot* user = bounce_users_[static_cast<std::size_t>(i)];
    if (user == nullptr) {
      free = i;
    } else if (modifies && user->request->kind_ == IoKind::kWrite && user->file == extent.file &&
               user->begin_bytes < end && begin < user->begin_bytes + user->total_bytes) {
      return false;
    }
  }
  if (free < 0) return false;
  bounce_users_[static_cast<std::size_t>(free)] = &slot;
  slot.bounce = free;
  slot.user_skip = static_cast<std::uint32_t>(extent.offset_bytes - begin);
  slot.user_length = static_cast<std::uint32_t>(extent.length_bytes);

  std::byte* buffer = bounce_memory_.data() + static_cast<std::uint64_t>(free) * kBounceBytes;
  const auto length = static_cast<std::uint32_t>(end - begin);
  if (modifies) {
    slot.phase = Slot::Phase::kReadToModify;
    slot.kind = IoKind::kRead;
    // What lies behind the logical end is padding: it need not exist yet.
    const std::uint64_t existing =
        std::clamp<std::uint64_t>(extent.file_end_bytes, begin, end) - begin;
    slot.aim(begin, buffer, length, static_cast<std::uint32_t>(existing));
  } else {
    const std::uint32_t needed =
        slot.kind == IoKind::kRead ? slot.user_skip + slot.user_length : length;
    slot.aim(begin, buffer, length, needed);
  }
  return true;
}

// ---- blocks back -----------------------------------------------------------------------------

void IoQueue::on_block_done(IoOp& op, std::int64_t result) noexcept {
  auto& slot = static_cast<Slot&>(op);
  slot.queue->finish_transfer(slot, result);
}

// Points the slot at what its transfer has not moved yet, from the last whole sector on: a count
// that is no multiple of a sector is possible, a direct transfer that begins there is not.
void IoQueue::aim_at_rest(Slot& slot) {
  const std::uint64_t alignment = std::max(slot.file->offset_alignment_bytes(), std::uint32_t{1});
  const std::uint64_t kept = align_down(slot.moved_bytes, alignment);
  slot.offset_bytes = slot.begin_bytes + kept;
  slot.data = slot.memory + kept;
  slot.length_bytes = static_cast<std::uint32_t>(slot.total_bytes - kept);
  slot.moved_bytes = kept;
}

// Runs on the backend's threads. A slot is its thread's own until end_block_locked() frees it.
void IoQueue::finish_transfer(Slot& slot, std::int64_t result) noexcept {
  const std::int64_t now_ns = backend_.clock().now_ns();
  const std::uint64_t moved = result > 0 ? static_cast<std::uint64_t>(result) : 0;
  const bool transfers = slot.kind == IoKind::kRead || slot.kind == IoKind::kWrite;
  slot.moved_bytes += moved;

  Verdict verdict = Verdict::kDone;
  if (result < 0 || (transfers && slot.moved_bytes < slot.needed_bytes)) {
    const std::uint64_t sector = slot.file != nullptr ? slot.file->offset_alignment_bytes() : 1;
    const bool advanced = moved >= std::max<std::uint64_t>(sector, 1);
    if (advanced) slot.retries = 0;
    verdict = judge_incomplete({.kind = slot.kind,
                                .result = result,
                                .advanced = advanced,
                                .retries = slot.retries,
                                .max_retries = options_.max_retries});
  } else if (slot.phase == Slot::Phase::kReadToModify) {
    // The sector as it is, padding as zeros; then the caller's bytes over it, and back to the
    // drive.
    std::memset(slot.memory + slot.moved_bytes, 0, slot.total_bytes - slot.moved_bytes);
    slot.copy_in();
    verdict = Verdict::kNextPhase;
  } else if (slot.bounce >= 0 && slot.kind == IoKind::kRead) {
    slot.copy_out();
  }

  std::unique_lock lock(mutex_);
  IoRequest& request = *slot.request;
  if (transfers) {
    IoDirectionStats& direction = slot.kind == IoKind::kRead ? stats_.read : stats_.write;
    if (moved > 0) {
      ++direction.blocks;
      direction.device_bytes += moved;
      direction.block_latency.record(now_ns - slot.submitted_ns);
    }
  }
  switch (verdict) {
    case Verdict::kResume:
      ++stats_.short_transfers;
      aim_at_rest(slot);
      break;
    case Verdict::kRetry:
      ++stats_.retries;
      if (moved > 0) ++stats_.short_transfers;
      aim_at_rest(slot);
      slot.delay_ns = retry_delay_ns(result, slot.retries);
      ++slot.retries;
      break;
    case Verdict::kNextPhase:
      slot.phase = Slot::Phase::kTransfer;
      slot.kind = IoKind::kWrite;
      slot.aim(slot.begin_bytes, slot.memory, slot.total_bytes, slot.total_bytes);
      break;
    case Verdict::kFail:
      request.stopped_ = true;
      if (request.status_.ok()) {
        request.status_ = transfer_error(slot, result, slot.retries);
      }
      break;
    case Verdict::kDone:
      break;
  }
  if (verdict != Verdict::kDone && verdict != Verdict::kFail) {
    slot.submitted_ns = now_ns;
    lock.unlock();
    if (verdict == Verdict::kRetry && result < 0 && result != -EINTR && result != -EAGAIN) {
      log::warning_once("retry:" + slot.file->path() + std::to_string(result),
                        transfer_error(slot, result, 0).message() +
                            " (trying again; further ones on this file are only counted)");
    }
    IoOp* again = &slot;
    backend_.submit({&again, 1});
    return;
  }

  end_block_locked(slot);
  const bool ended = request.blocks_in_flight_ == 0 && !request.pending_;
  const IoRequest::Callback callback = request.callback_;
  void* const context = request.context_;
  if (ended) {
    if (callback != nullptr) ++callbacks_running_;
    end_request_locked(request);
    request.latency_ns_ = now_ns - request.submitted_ns_;
  }
  start_blocks(lock);
  if (!ended || callback == nullptr) {
    if (waiters_ > 0) ended_.notify_all();
    return;
  }
  // From here on nothing of the request is touched: it is its owner's again.
  lock.unlock();
  callback(request, context);
  lock.lock();
  --callbacks_running_;
  if (waiters_ > 0) ended_.notify_all();
}

void IoQueue::end_block_locked(Slot& slot) {
  if (slot.bounce >= 0) {
    bounce_users_[static_cast<std::size_t>(slot.bounce)] = nullptr;
    ++stats_.bounced_blocks;
    slot.bounce = -1;
  }
  --slot.request->blocks_in_flight_;
  --blocks_in_flight_;
  slot.used = false;
  slot.request = nullptr;
  slot.next_free = std::exchange(free_slots_, &slot);
}

void IoQueue::end_request_locked(IoRequest& request) {
  request.in_flight_ = false;
  if (request.status_.ok()) {
    if (request.kind_ == IoKind::kSync) ++stats_.syncs;
    if (request.kind_ == IoKind::kRead || request.kind_ == IoKind::kWrite) {
      IoDirectionStats& direction = request.kind_ == IoKind::kRead ? stats_.read : stats_.write;
      ++direction.requests;
      direction.payload_bytes += request.length_bytes_;
    }
  } else if (request.status_.error().code() != ErrorCode::kCancelled) {
    ++stats_.failed_requests;
  }
}

// ---- what is going on ------------------------------------------------------------------------

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
  const Slot* oldest = nullptr;
  for (int i = 0; i < options_.queue_depth; ++i) {
    const Slot& slot = slots_[static_cast<std::size_t>(i)];
    const bool older = oldest == nullptr || slot.submitted_ns < oldest->submitted_ns;
    if (slot.used && slot.file != nullptr && older) oldest = &slot;
  }
  if (oldest == nullptr) return std::nullopt;
  return InFlight{.kind = oldest->kind,
                  .path = oldest->file->path(),
                  .offset_bytes = oldest->offset_bytes,
                  .length_bytes = oldest->length_bytes,
                  .age_ns = backend_.clock().now_ns() - oldest->submitted_ns};
}

}  // namespace sluice::aio
