#include "aio/pinned_pool.h"

#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <utility>

#include "aio/check.h"
#include "aio/log.h"
#include "aio/units.h"

namespace sluice::aio {
namespace {

std::string memlock_advice(std::uint64_t wanted_bytes) {
  rlimit limit{};
  ::getrlimit(RLIMIT_MEMLOCK, &limit);
  return format_bytes(wanted_bytes) + " of IO buffers cannot be locked in memory: the limit is " +
         (limit.rlim_cur == RLIM_INFINITY ? "not set, so memory is short"
                                          : format_bytes(limit.rlim_cur)) +
         " (raise it with ulimit -l unlimited, /etc/security/limits.conf or LimitMEMLOCK=)";
}

}  // namespace

// ---- Lease -----------------------------------------------------------------------------------

PinnedPool::Lease::Lease(Lease&& other) noexcept
    : pool_(std::exchange(other.pool_, nullptr)),
      index_(other.index_),
      bytes_(std::exchange(other.bytes_, {})) {}

PinnedPool::Lease& PinnedPool::Lease::operator=(Lease&& other) noexcept {
  if (this != &other) {
    release();
    pool_ = std::exchange(other.pool_, nullptr);
    index_ = other.index_;
    bytes_ = std::exchange(other.bytes_, {});
  }
  return *this;
}

PinnedPool::Lease::~Lease() { release(); }

void PinnedPool::Lease::release() {
  if (pool_ != nullptr) std::exchange(pool_, nullptr)->give_back(index_);
  bytes_ = {};
}

// ---- construction and destruction ------------------------------------------------------------

Result<std::unique_ptr<PinnedPool>> PinnedPool::create(const Options& options) {
  if (options.buffer_bytes == 0 || options.capacity < 1) {
    return Error(ErrorCode::kInvalidArgument,
                 "a pool needs at least one buffer of at least one byte, not " +
                     std::to_string(options.capacity) + " of " +
                     std::to_string(options.buffer_bytes) + " bytes");
  }
  const std::uint64_t stride = align_up(options.buffer_bytes, 4096);
  const auto capacity = static_cast<std::uint64_t>(options.capacity);
  if (stride < options.buffer_bytes || stride > (std::uint64_t{1} << 62) / capacity) {
    return Error(ErrorCode::kOutOfMemory, std::to_string(options.capacity) + " buffers of " +
                                              format_bytes(options.buffer_bytes) +
                                              " are more than any machine has");
  }
  SLUICE_ASSIGN_OR_RETURN(auto memory,
                          PageMemory::map(mapped_bytes(options.buffer_bytes, options.capacity),
                                          options.huge_pages, options.executor));
  std::unique_ptr<PinnedPool> pool(new PinnedPool(options, std::move(memory)));

  if (options.lock != MemoryLock::kNone) {
    pool->locked_ = ::mlock(pool->memory_.data(), pool->memory_.size_bytes()) == 0;
    if (!pool->locked_) {
      log::info_once("mlock",
                     memlock_advice(pool->memory_.size_bytes()) +
                         "; they are used without a lock, so the system may swap them out");
    }
  }
  if (options.hook.pin) {
    SLUICE_RETURN_IF_ERROR(options.hook.pin(pool->memory_.bytes()));
    pool->pinned_by_hook_ = true;
  }
  if (options.backend != nullptr) {
    pool->registered_ = options.backend->attach_memory(pool->memory_.bytes());
  }
  return pool;
}

std::uint64_t PinnedPool::mapped_bytes(std::uint64_t buffer_bytes, int capacity) {
  return PageMemory::mapped_bytes(align_up(buffer_bytes, 4096) *
                                  static_cast<std::uint64_t>(capacity));
}

PinnedPool::PinnedPool(const Options& options, PageMemory memory)
    : capacity_(options.capacity),
      buffer_bytes_(options.buffer_bytes),
      stride_bytes_(align_up(options.buffer_bytes, 4096)),
      hook_(options.hook),
      backend_(options.backend),
      memory_(std::move(memory)) {
  // Lowest address first.
  free_.reserve(static_cast<std::size_t>(capacity_));
  for (int i = capacity_ - 1; i >= 0; --i) free_.push_back(i);
}

PinnedPool::~PinnedPool() {
  SLUICE_CHECK(free_count() == capacity_, "a PinnedPool was destroyed with leases out");
  if (backend_ != nullptr) backend_->detach_memory(memory_.bytes());
  if (pinned_by_hook_ && hook_.unpin) hook_.unpin(memory_.bytes());
}

// ---- leases ----------------------------------------------------------------------------------

std::span<std::byte> PinnedPool::buffer(int index) const {
  return {memory_.data() + static_cast<std::uint64_t>(index) * stride_bytes_, buffer_bytes_};
}

void PinnedPool::take_locked(std::span<Lease> leases) {
  for (Lease& lease : leases) {
    const int index = free_.back();
    free_.pop_back();
    lease = Lease(this, index, buffer(index));
  }
  peak_leased_ = std::max(peak_leased_, capacity_ - static_cast<int>(free_.size()));
}

void PinnedPool::acquire_all(std::span<Lease> leases) {
  SLUICE_CHECK(leases.size() <= static_cast<std::size_t>(capacity_),
               "more buffers asked for at once than the pool has");
  for (Lease& lease : leases) lease.release();
  std::unique_lock lock(mutex_);
  const std::uint64_t ticket = next_ticket_++;
  const auto my_turn = [&] { return serving_ticket_ == ticket && free_.size() >= leases.size(); };
  if (!my_turn()) {
    changed_.wait(lock, my_turn);
    ++waits_;
  }
  take_locked(leases);
  ++serving_ticket_;
  // The remaining buffers may be enough for the next waiting caller.
  if (serving_ticket_ != next_ticket_) changed_.notify_all();
}

bool PinnedPool::try_acquire_all(std::span<Lease> leases) {
  for (Lease& lease : leases) lease.release();
  const std::lock_guard lock(mutex_);
  if (serving_ticket_ != next_ticket_ || free_.size() < leases.size()) return false;
  take_locked(leases);
  return true;
}

PinnedPool::Lease PinnedPool::acquire() {
  Lease lease;
  acquire_all({&lease, 1});
  return lease;
}

void PinnedPool::give_back(int index) noexcept {
  const std::lock_guard lock(mutex_);
  free_.push_back(index);  // within the capacity reserved in the constructor: no allocation
  if (serving_ticket_ != next_ticket_) changed_.notify_all();
}

int PinnedPool::free_count() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int>(free_.size());
}

PinnedPool::Usage PinnedPool::usage() const {
  const std::lock_guard lock(mutex_);
  const auto leased = static_cast<std::uint64_t>(capacity_) - free_.size();
  return {.total_bytes = memory_.size_bytes(),
          .leased_bytes = leased * stride_bytes_,
          .peak_leased_bytes = static_cast<std::uint64_t>(peak_leased_) * stride_bytes_,
          .waits = waits_,
          .locked = locked_,
          .registered = registered_};
}

}  // namespace sluice::aio
