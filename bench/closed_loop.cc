#include "bench/closed_loop.h"

#include <algorithm>
#include <utility>

#include "aio/check.h"
#include "aio/units.h"
#include "bench/pattern.h"

namespace sluice::bench {

ClosedLoop::ClosedLoop(AioSession& session, const LoopJob& job)
    : session_(session),
      job_(job),
      block_bytes_(session.options().block_bytes),
      // A single pass includes a shorter last block; repeated passes cover whole blocks only.
      block_count_(job.one_pass ? (job.range_bytes + block_bytes_ - 1) / block_bytes_
                                : job.range_bytes / block_bytes_),
      lanes_(static_cast<std::size_t>(session.options().threads)),
      slots_(new Slot[session.buffers().size()]),
      next_read_(job.first_block),
      next_write_(job.first_block) {
  SLUICE_CHECK(block_count_ > 0, "a loop needs at least one block");
  SLUICE_CHECK(!job.one_pass || job.mode == Mode::kRead || job.mode == Mode::kWrite,
               "a pass reads or writes");
  for (std::size_t i = 0; i < session.buffers().size(); ++i) {
    Slot& slot = slots_[i];
    slot.loop = this;
    slot.buffer = session.buffers()[i].bytes().first(block_bytes_);
    slot.lane = static_cast<int>(i % lanes_.size());
    slot.random = Random(mix64(job.random_seed) + i);
    slot.request.set_callback(&ClosedLoop::on_done, &slot);
    if (writes(job.mode) && !job.pattern_seed)
      fill_pattern(slot.buffer, job.random_seed, i * block_bytes_);
  }
}

ClosedLoop::~ClosedLoop() {
  stop();
  static_cast<void>(drain());
}

void ClosedLoop::start() {
  const std::size_t count = session_.buffers().size();
  {
    const std::lock_guard lock(mutex_);
    active_ = static_cast<int>(count);
  }
  for (std::size_t i = 0; i < count; ++i)
    if (!issue(slots_[i])) retire();
}

bool ClosedLoop::ended() const {
  const std::lock_guard lock(mutex_);
  return active_ == 0;
}

Status ClosedLoop::drain() {
  std::unique_lock lock(mutex_);
  ended_.wait(lock, [this] { return active_ == 0; });
  return first_error_;
}

LoopCounts ClosedLoop::counts() const {
  LoopCounts sum;
  for (const Lane& lane : lanes_) {
    const std::lock_guard lock(lane.mutex);
    sum.reads += lane.counts.reads;
    sum.writes += lane.counts.writes;
    sum.read_bytes += lane.counts.read_bytes;
    sum.written_bytes += lane.counts.written_bytes;
    sum.latency.merge(lane.counts.latency);
  }
  return sum;
}

std::uint64_t ClosedLoop::counted_bytes() const {
  std::uint64_t sum = 0;
  for (const Lane& lane : lanes_) {
    const std::lock_guard lock(lane.mutex);
    sum += lane.counts.read_bytes + lane.counts.written_bytes;
  }
  return sum;
}

std::uint64_t ClosedLoop::issued_blocks() const {
  const auto& next = writes(job_.mode) ? next_write_ : next_read_;
  const std::uint64_t position = next.load(std::memory_order_relaxed);
  return job_.one_pass ? std::min(position, block_count_) : position;
}

void ClosedLoop::on_done(aio::IoRequest& /*request*/, void* context) noexcept {
  Slot& slot = *static_cast<Slot*>(context);
  slot.loop->complete(slot);
}

void ClosedLoop::complete(Slot& slot) noexcept {
  const aio::IoRequest& request = slot.request;
  if (!request.status().ok()) [[unlikely]] {
    fail(session_.shown(request.status().error()));
    return retire();
  }
  const bool is_read = request.kind() == aio::IoKind::kRead;
  if (counting_.load(std::memory_order_relaxed)) {
    Lane& lane = lanes_[static_cast<std::size_t>(slot.lane)];
    const std::lock_guard lock(lane.mutex);
    LoopCounts& counts = lane.counts;
    ++(is_read ? counts.reads : counts.writes);
    (is_read ? counts.read_bytes : counts.written_bytes) += request.length_bytes();
    counts.latency.record(request.latency_ns());
  }
  if (is_read && job_.pattern_seed && !check(slot)) return retire();
  if (stopping_.load(std::memory_order_relaxed) || !issue(slot)) retire();
}

bool ClosedLoop::issue(Slot& slot) noexcept {
  bool is_read = !writes(job_.mode);
  std::uint64_t block = 0;
  if (job_.mode == Mode::kMixed) is_read = slot.random.coin();
  if (job_.mode == Mode::kRandRead) {
    block = slot.random.below(block_count_);
  } else {
    block = (is_read ? next_read_ : next_write_).fetch_add(1, std::memory_order_relaxed);
    if (job_.one_pass && block >= block_count_) return false;
    block %= block_count_;
  }
  const std::uint64_t offset = block * block_bytes_;
  const std::span<std::byte> data =
      slot.buffer.first(std::min(block_bytes_, job_.range_bytes - offset));
  if (is_read) {
    slot.request.prepare_read(session_.target(), offset, data);
  } else {
    if (job_.pattern_seed) fill_pattern(data, *job_.pattern_seed, offset);
    slot.request.prepare_write(session_.target(), offset, data);
  }
  session_.queue().submit(slot.request);
  return true;
}

bool ClosedLoop::check(const Slot& slot) noexcept {
  const std::uint64_t offset = slot.request.offset_bytes();
  const std::uint64_t length = slot.request.length_bytes();
  const auto mismatch =
      find_mismatch(slot.buffer.first(length), *job_.pattern_seed, offset, job_.range_bytes);
  if (mismatch) [[unlikely]] {
    fail(Error(ErrorCode::kCorrupt, "wrong data in " + describe(*mismatch, session_.shown_path())));
    return false;
  }
  checked_bytes_.fetch_add(length, std::memory_order_relaxed);
  return true;
}

void ClosedLoop::fail(Error error) noexcept {
  stop();
  const std::lock_guard lock(mutex_);
  if (first_error_.ok()) first_error_ = std::move(error);
  failed_ = true;
}

void ClosedLoop::retire() noexcept {
  const std::lock_guard lock(mutex_);
  if (--active_ == 0) ended_.notify_all();
}

}  // namespace sluice::bench
