// ParamOffloader's reads and writes: how they start, end and are checked, and how threads wait for
// them.
#include <utility>

#include "aio/check.h"
#include "offload/params/param_offloader.h"
#include "offload/params/param_offloader_parts.h"
#include "swap/callers_thread.h"
#include "swap/record_image.h"
#include "swap/record_work.h"

namespace sluice::offload {
namespace {

constexpr int kNone = ParamCache::kNone;

}  // namespace

// The unit has got a buffer that may have belonged to another unit.
void ParamOffloader::occupy_locked(int unit) {
  Slot& slot = slot_of(unit);
  if (slot.unit != kNone && slot.unit != unit) at(slot.unit).content = Unit::Content::kAbsent;
  slot.unit = unit;
}

void ParamOffloader::start_read(Lock& lock, int unit) {
  occupy_locked(unit);
  at(unit).content = Unit::Content::kReading;
  hand_over(lock, unit, /*write=*/false);
}

void ParamOffloader::write_back(Lock& lock, int unit) {
  at(unit).content = Unit::Content::kWriting;
  cache_.set_readable(unit);
  ++writing_;
  hand_over(lock, unit, /*write=*/true);
}

// A transfer may end before the store's call returns, so threads that are passing one to the store
// are counted separately.
void ParamOffloader::hand_over(Lock& lock, int unit, bool write) {
  Slot& slot = slot_of(unit);
  const std::span<std::byte> image = image_of(unit);
  const swap::RecordId record = layout_.place(unit).record;
  cache_.pin(unit);
  ++in_flight_;
  ++starting_;
  changed_locked();
  lock.unlock();
  if (write) {
    store_->write(slot.io, record, at(unit).generation, image);
  } else {
    store_->read(slot.io, record, image);
  }
  lock.lock();
  --starting_;
  changed_locked();
}

void ParamOffloader::on_done(swap::RecordIo& io, void* context) noexcept {
  const Slot& slot = *static_cast<const Slot*>(context);
  ParamOffloader& self = *slot.owner;
  Lock lock(self.mutex_);
  const bool wrote = self.at(slot.unit).content == Unit::Content::kWriting;
  self.at(slot.unit).content = wrote ? Unit::Content::kPresent : Unit::Content::kLoaded;
  self.cache_.unpin(slot.unit);
  --self.in_flight_;
  self.writing_ -= wrote ? 1 : 0;
  if (io.status().ok()) {
    (wrote ? self.stats_.writes : self.stats_.reads) += 1;
    (wrote ? self.stats_.bytes_written : self.stats_.bytes_read) +=
        self.layout_.place(slot.unit).image_bytes;
  } else {
    self.fail_locked(io.status().error());
  }
  self.changed_locked();
  self.read_ahead(lock);
}

void ParamOffloader::read_ahead(Lock& lock) {
  while (failure_.ok()) {
    const int unit = cache_.next_to_read();
    if (unit == kNone) return;
    start_read(lock, unit);
  }
}

// The caller has access, so no other thread uses the content while the lock is released.
void ParamOffloader::check(Lock& lock, int unit) {
  at(unit).content = Unit::Content::kChecking;
  lock.unlock();
  Status intact = work_on_image(unit, /*seal=*/false);
  lock.lock();
  at(unit).content = Unit::Content::kPresent;
  if (!intact.ok()) {
    fail_locked(std::move(intact).error().with_context(
        "checking record " + store_->name(layout_.place(unit).record) + " of run " +
        store_->layout().options().run));
  }
  changed_locked();
}

// Checks the unit's record, or computes its checksums.
Status ParamOffloader::work_on_image(int unit, bool seal) {
  swap::RecordImage image(store_->shape(layout_.place(unit).record), image_of(unit));
  const std::uint64_t generation = at(unit).generation;
  swap::RecordWork work;
  (seal ? work.seal : work.check) = generation;
  if (executor_ == nullptr) {
    swap::CallersThread alone;
    return swap::work_on_record(alone, image, work);
  }
  const std::lock_guard one_at_a_time(executor_mutex_);
  return swap::work_on_record(*executor_, image, work);
}

// ---- changes and waiting ---------------------------------------------------------------------

void ParamOffloader::fail_locked(Error error) {
  if (failure_.ok()) failure_ = std::move(error);
  changed_locked();
}

void ParamOffloader::changed_locked() {
  ++changes_;
  changed_.notify_all();
}

// Returns when something has changed, or, in virtual time, may have changed.
void ParamOffloader::wait_for_change(Lock& lock, std::int64_t& waited_ns) {
  const std::uint64_t seen = changes_;
  const std::int64_t begin_ns = clock_.now_ns();
  lock.unlock();
  const aio::PumpResult pumped = store_ != nullptr ? store_->pump() : aio::PumpResult::kThreaded;
  lock.lock();
  SLUICE_CHECK(pumped != aio::PumpResult::kIdle || changes_ != seen,
               "virtual time ran out of events while parameters were waited for: a deadlock");
  if (pumped == aio::PumpResult::kThreaded) changed_.wait(lock, [&] { return changes_ != seen; });
  waited_ns += clock_.now_ns() - begin_ns;
}

}  // namespace sluice::offload
