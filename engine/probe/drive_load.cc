#include "engine/probe/drive_load.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "aio/check.h"

namespace sluice::engine {
namespace {

// Twice the number in flight, so that the queue never waits for this loop.
constexpr std::size_t kRequestsPerBlock = 2;

}  // namespace

DriveLoad::DriveLoad(aio::IoQueue& queue, const aio::IoTarget& target,
                     std::span<const std::span<std::byte>> buffers, const Options& options)
    : queue_(queue),
      target_(target),
      options_(options),
      block_count_(options.range_bytes / queue.options().block_bytes),
      slots_(std::min(buffers.size(),
                      kRequestsPerBlock * static_cast<std::size_t>(queue.options().queue_depth))) {
  SLUICE_CHECK(block_count_ > 0 && !buffers.empty(), "a load needs a block and a buffer");
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    slots_[i].load = this;
    slots_[i].buffer = buffers[i].first(queue.options().block_bytes);
    slots_[i].request.set_callback(&DriveLoad::on_done, &slots_[i]);
  }
}

DriveLoad::~DriveLoad() {
  stop();
  static_cast<void>(drain());
}

void DriveLoad::start() {
  {
    const std::lock_guard lock(mutex_);
    active_ = static_cast<int>(slots_.size());
  }
  for (Slot& slot : slots_)
    if (!issue(slot)) retire();
}

bool DriveLoad::ended() const {
  const std::lock_guard lock(mutex_);
  return active_ == 0;
}

Status DriveLoad::drain() {
  // In virtual time requests complete only inside pump().
  while (!ended() && queue_.backend().pump() == aio::PumpResult::kProgressed) continue;
  std::unique_lock lock(mutex_);
  ended_.wait(lock, [this] { return active_ == 0; });
  return first_error_;
}

std::uint64_t DriveLoad::issued_blocks() const {
  return std::min(next_block_.load(), block_count_);
}

void DriveLoad::on_done(aio::IoRequest& request, void* context) noexcept {
  Slot& slot = *static_cast<Slot*>(context);
  DriveLoad& load = *slot.load;
  if (request.status().ok()) {
    load.done_bytes_ += request.length_bytes();
    if (!load.stopping_ && load.issue(slot)) return;
  } else {
    load.stop();
    const std::lock_guard lock(load.mutex_);
    if (load.first_error_.ok()) load.first_error_ = request.status();
  }
  load.retire();
}

bool DriveLoad::issue(Slot& slot) noexcept {
  const std::uint64_t turn = next_block_++;
  if (options_.once && turn >= block_count_) return false;
  const std::uint64_t at = options_.first_byte + turn % block_count_ * queue_.options().block_bytes;
  if (options_.kind == aio::IoKind::kRead)
    slot.request.prepare_read(target_, at, slot.buffer);
  else
    slot.request.prepare_write(target_, at, slot.buffer);
  queue_.submit(slot.request);
  return true;
}

void DriveLoad::retire() noexcept {
  const std::lock_guard lock(mutex_);
  if (--active_ == 0) ended_.notify_all();
}

void wait_until(aio::IoBackend& backend, std::int64_t deadline_ns, const DriveLoad& load) {
  constexpr std::int64_t kNapNs = 5'000'000;
  for (;;) {
    const std::int64_t left_ns = deadline_ns - backend.clock().now_ns();
    if (left_ns <= 0 || load.ended()) return;
    if (backend.pump() == aio::PumpResult::kThreaded)
      std::this_thread::sleep_for(std::chrono::nanoseconds(std::min(left_ns, kNapNs)));
  }
}

}  // namespace sluice::engine
