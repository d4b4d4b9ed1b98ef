// RunWatcher: followers of several runs, and a thread that has them look every so often. A file
// system that does not answer stops that thread, and nobody who asks for what was seen last.
//
// Threads: any may call.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "tools/watch/run_follower.h"

namespace sluice::watch {

// What followers saw at one moment; it does not change any more.
struct Sight {
  std::uint64_t number = 0;  // rises with each
  struct Run {
    RunView view;
    report::StepSeries series;
  };
  std::vector<Run> runs;
};

class RunWatcher {
 public:
  RunWatcher(std::vector<std::unique_ptr<RunFollower>> runs, std::chrono::milliseconds every);
  ~RunWatcher();
  RunWatcher(const RunWatcher&) = delete;
  RunWatcher& operator=(const RunWatcher&) = delete;

  std::shared_ptr<const Sight> sight() const;

  // Calls visit(number of the sight, followers) while none of them looks. False: one of them has
  // been looking for kPatience, since a file does not answer.
  template <typename Visit>
  bool with_runs(const Visit& visit) const {
    const std::unique_lock lock(runs_mutex_, kPatience);
    if (lock) visit(number_, runs_);
    return lock.owns_lock();
  }

 private:
  static constexpr std::chrono::seconds kPatience{2};

  void look();
  void work();

  const std::chrono::milliseconds every_;
  mutable std::timed_mutex runs_mutex_;
  std::vector<std::unique_ptr<RunFollower>> runs_;  // guarded by runs_mutex_, like the next
  std::uint64_t number_ = 0;

  mutable std::mutex sight_mutex_;
  std::shared_ptr<const Sight> sight_;  // guarded by sight_mutex_

  std::mutex stop_mutex_;
  std::condition_variable stop_changed_;
  bool stops_ = false;  // guarded by stop_mutex_
  std::thread thread_;
};

}  // namespace sluice::watch
