#include "offload/state/unit_update.h"

#include <algorithm>
#include <string>
#include <system_error>
#include <utility>

#include "aio/check.h"
#include "aio/io_thread.h"

namespace sluice::offload {

std::vector<ScalarRange> scalar_ranges(const UnitSpec& unit) {
  std::vector<ScalarRange> ranges;
  std::uint64_t end = 0;
  for (const GroupRange& range : unit.scalars) {
    end += range.elements;
    if (!ranges.empty() && ranges.back().group == range.group)
      ranges.back().end = end;
    else
      ranges.push_back({.end = end, .group = range.group});
  }
  return ranges;
}

UnitUpdate::Piece UnitUpdate::piece(int group, std::uint64_t begin, std::uint64_t end) const {
  if (ranges.empty()) return {groups[static_cast<std::size_t>(group)], end};
  const auto range = std::upper_bound(
      ranges.begin(), ranges.end(), begin,
      [](std::uint64_t element, const ScalarRange& it) { return element < it.end; });
  return {groups[static_cast<std::size_t>(range->group)], std::min(end, range->end)};
}

Result<std::unique_ptr<UpdateWorker>> UpdateWorker::create(std::function<void()> job) {
  std::unique_ptr<UpdateWorker> worker(new UpdateWorker(std::move(job)));
  try {
    const aio::SignalsBlocked signals_blocked;
    worker->thread_ = std::thread([self = worker.get()] { self->run(); });
  } catch (const std::system_error& error) {
    return Error(ErrorCode::kOutOfMemory, std::string("could not start the thread for updates (") +
                                              error.what() + "): raise ulimit -u");
  }
  return worker;
}

UpdateWorker::~UpdateWorker() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void UpdateWorker::start() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return !running_; });
  running_ = true;
  changed_.notify_all();
}

void UpdateWorker::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return !running_; });
}

void UpdateWorker::run() {
  aio::name_this_thread("sluice-update");
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return running_ || stopping_; });
    if (!running_) return;
    lock.unlock();
    job_();
    lock.lock();
    running_ = false;
    changed_.notify_all();
  }
}

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
