#include "tools/watch/run_watcher.h"

#include <utility>

namespace sluice::watch {

RunWatcher::RunWatcher(std::vector<std::unique_ptr<RunFollower>> runs,
                       std::chrono::milliseconds every)
    : every_(every), runs_(std::move(runs)) {
  look();
  thread_ = std::thread([this] { work(); });
}

RunWatcher::~RunWatcher() {
  {
    const std::lock_guard lock(stop_mutex_);
    stops_ = true;
  }
  stop_changed_.notify_all();
  thread_.join();
}

void RunWatcher::look() {
  auto sight = std::make_shared<Sight>();
  {
    const std::lock_guard lock(runs_mutex_);
    for (const auto& run : runs_) {
      run->poll();
      sight->runs.push_back({.view = run->view(), .series = run->record().metrics.series});
    }
    sight->number = ++number_;
  }
  const std::lock_guard lock(sight_mutex_);
  sight_ = std::move(sight);
}

void RunWatcher::work() {
  std::unique_lock lock(stop_mutex_);
  while (!stop_changed_.wait_for(lock, every_, [this] { return stops_; })) {
    lock.unlock();
    look();
    lock.lock();
  }
}

std::shared_ptr<const Sight> RunWatcher::sight() const {
  const std::lock_guard lock(sight_mutex_);
  return sight_;
}

}  // namespace sluice::watch
