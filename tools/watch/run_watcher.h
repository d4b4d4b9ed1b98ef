// RunWatcher: followers of several runs, and a thread that polls them periodically. A file system
// that does not answer blocks only that thread; readers still get the last snapshot. Construction
// and destruction wait for the thread for at most kPatience. After that, construction returns
// without a snapshot, and destruction detaches the thread, which keeps the data it needs.
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

// What the followers saw at one moment; immutable.
struct WatchSnapshot {
  std::uint64_t number = 0;  // increases with each snapshot; 0: nothing seen yet
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

  // All runs, even before the first poll.
  std::shared_ptr<const WatchSnapshot> snapshot() const;

  // Calls visit(number of the snapshot, followers) while no poll is running. False: a poll has been
  // running for kPatience because a file does not answer.
  template <typename Visit>
  bool with_runs(const Visit& visit) const {
    const std::unique_lock lock(shared_->runs_mutex, kPatience);
    if (lock) visit(shared_->number, shared_->runs);
    return lock.owns_lock();
  }

 private:
  static constexpr std::chrono::seconds kPatience{2};

  // Shared with the thread.
  struct Shared {
    std::timed_mutex runs_mutex;
    std::vector<std::unique_ptr<RunFollower>> runs;  // guarded by runs_mutex, like `number`
    std::uint64_t number = 0;

    std::mutex mutex;
    std::condition_variable changed;
    std::shared_ptr<const WatchSnapshot> snapshot;  // guarded by mutex, like the members below
    bool stops = false;
    bool has_ended = false;
  };

  static void look(Shared& shared);
  static void work(Shared& shared, std::chrono::milliseconds every);

  const std::shared_ptr<Shared> shared_;
  std::thread thread_;
};

}  // namespace sluice::watch
