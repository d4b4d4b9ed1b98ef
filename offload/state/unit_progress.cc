#include "offload/state/unit_progress.h"

#include <utility>

#include "aio/check.h"

namespace sluice::offload {

void UnitProgress::begin_step() {
  const std::lock_guard lock(mutex_);
  for (Unit& unit : units_) {
    SLUICE_CHECK(unit.state == State::kDone, "a step begins when the one before is done");
    unit.state = State::kPending;
  }
}

void UnitProgress::host_done(int unit, const UnitArrays& arrays) {
  {
    const std::lock_guard lock(mutex_);
    units_[static_cast<std::size_t>(unit)] = {.state = State::kHostDone, .arrays = arrays};
  }
  changed_.notify_all();
}

void UnitProgress::fail(Error error) {
  {
    const std::lock_guard lock(mutex_);
    if (error_.ok()) error_ = std::move(error);
  }
  changed_.notify_all();
}

Status UnitProgress::wait(int unit, const Finish& finish) {
  std::unique_lock lock(mutex_);
  Unit& it = units_[static_cast<std::size_t>(unit)];
  changed_.wait(lock, [&] { return !error_.ok() || it.state != State::kPending; });
  if (!error_.ok()) return error_;
  if (it.state == State::kHostDone) {
    error_ = finish(unit, it.arrays);
    it.state = State::kDone;
    if (!error_.ok()) changed_.notify_all();
  }
  return error_;
}

bool UnitProgress::host_is_done(int unit) const {
  const std::lock_guard lock(mutex_);
  return !error_.ok() || units_[static_cast<std::size_t>(unit)].state != State::kPending;
}

Status UnitProgress::status() const {
  const std::lock_guard lock(mutex_);
  return error_;
}

}  // namespace sluice::offload
