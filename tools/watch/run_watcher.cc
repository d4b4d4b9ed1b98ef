#include "tools/watch/run_watcher.h"

#include <utility>

namespace sluice::watch {

RunWatcher::RunWatcher(std::vector<std::unique_ptr<RunFollower>> runs,
                       std::chrono::milliseconds every)
    : shared_(std::make_shared<Shared>()) {
  auto nothing = std::make_shared<WatchSnapshot>();
  for (const auto& run : runs) {
    RunView view{.name = run->record().name, .path = run->record().path};
    view.phase = RunPhase::kSilent;
    nothing->runs.push_back({.view = std::move(view), .series = run->record().metrics.series});
  }
  shared_->snapshot = std::move(nothing);
  shared_->runs = std::move(runs);
  thread_ = std::thread([shared = shared_, every] { work(*shared, every); });
  std::unique_lock lock(shared_->mutex);
  shared_->changed.wait_for(lock, kPatience, [this] { return shared_->snapshot->number > 0; });
}

RunWatcher::~RunWatcher() {
  std::unique_lock lock(shared_->mutex);
  shared_->stops = true;
  shared_->changed.notify_all();
  const bool has_ended =
      shared_->changed.wait_for(lock, kPatience, [this] { return shared_->has_ended; });
  lock.unlock();
  if (has_ended)
    thread_.join();
  else
    thread_.detach();  // it is blocked in a file operation, and shares ownership of its data
}

void RunWatcher::look(Shared& shared) {
  auto snapshot = std::make_shared<WatchSnapshot>();
  {
    const std::lock_guard lock(shared.runs_mutex);
    for (const auto& run : shared.runs) {
      run->poll();
      snapshot->runs.push_back({.view = run->view(), .series = run->record().metrics.series});
    }
    snapshot->number = ++shared.number;
  }
  const std::lock_guard lock(shared.mutex);
  shared.snapshot = std::move(snapshot);
  shared.changed.notify_all();
}

void RunWatcher::work(Shared& shared, std::chrono::milliseconds every) {
  std::unique_lock lock(shared.mutex);
  while (!shared.stops) {
    lock.unlock();
    look(shared);
    lock.lock();
    shared.changed.wait_for(lock, every, [&] { return shared.stops; });
  }
  shared.has_ended = true;
  shared.changed.notify_all();
}

std::shared_ptr<const WatchSnapshot> RunWatcher::snapshot() const {
  const std::lock_guard lock(shared_->mutex);
  return shared_->snapshot;
}

}  // namespace sluice::watch
