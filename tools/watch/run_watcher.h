// RunWatcher: followers of several runs, and a thread that has them look every so often. A file
// system that does not answer stops that thread, and nobody who asks for what was seen last. Making
// and destroying a watcher wait for it, at most kPatience: then nothing was seen yet, or the thread
// is left alone with what it needs.
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
  std::uint64_t number = 0;  // rises with each; 0: nobody has looked yet
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

  // All runs, also before anything was seen of them.
  std::shared_ptr<const Sight> sight() const;

  // Calls visit(number of the sight, followers) while none of them looks. False: one of them has
  // been looking for kPatience, since a file does not answer.
  template <typename Visit>
  bool with_runs(const Visit& visit) const {
    const std::unique_lock lock(shared_->runs_mutex, kPatience);
    if (lock) visit(shared_->number, shared_->runs);
    return lock.owns_lock();
  }

 private:
  static constexpr std::chrono::seconds kPatience{2};

  // The thread's, too.
  struct Shared {
    std::timed_mutex runs_mutex;
    std::vector<std::unique_ptr<RunFollower>> runs;  // guarded by runs_mutex, like the next
    std::uint64_t number = 0;

    std::mutex mutex;
    std::condition_variable changed;
    std::shared_ptr<const Sight> sight;  // guarded by mutex, like the rest
    bool stops = false;
    bool has_ended = false;
  };

  static void look(Shared& shared);
  static void work(Shared& shared, std::chrono::milliseconds every);

  const std::shared_ptr<Shared> shared_;
  std::thread thread_;
};

}  // namespace sluice::watch
