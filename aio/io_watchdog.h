// IoWatchdog: reports file operations that hang, while they hang, so that a program never stalls
// silently.
//
// Its thread looks at the oldest block in flight of each queue, and at the file calls in which
// threads of the process are blocked (BlockedCalls). It reports what takes longer than the limit:
// operation, file, offset and drive. It reports again each time the wait has doubled, and once more
// when the operation has returned. It cancels nothing: a drive or its link may recover, and it is
// unknown what was written in the meantime.
//
// The thread makes no call to a file system, so that it does not hang with what it reports.
//
// Threads: one of its own; all methods from any.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "aio/blocked_calls.h"
#include "aio/io_queue.h"

namespace sluice::aio {

class IoWatchdog {
 public:
  struct Options {
    std::int64_t limit_ns = 30'000'000'000;  // 0: reports nothing
    // Also reports calls outside the queues; only one watchdog of a process does this, main's.
    bool file_calls = false;
    // Called on the watchdog's thread; by default log::warning().
    std::function<void(const std::string& message)> report = {};
  };

  // Watches a queue during its lifetime; both the queue and the watchdog must outlive it.
  class Watch {
   public:
    Watch() = default;
    Watch(Watch&& from) noexcept
        : watchdog_(std::exchange(from.watchdog_, nullptr)), number_(from.number_) {}
    Watch& operator=(Watch&& from) noexcept {
      std::swap(watchdog_, from.watchdog_);
      std::swap(number_, from.number_);
      return *this;
    }
    ~Watch() {
      if (watchdog_ != nullptr) watchdog_->forget(number_);
    }

   private:
    friend class IoWatchdog;
    Watch(IoWatchdog& watchdog, int number) : watchdog_(&watchdog), number_(number) {}
    IoWatchdog* watchdog_ = nullptr;
    int number_ = 0;
  };

  explicit IoWatchdog(Options options);
  // Watches these queues from the start; they must outlive it.
  IoWatchdog(const std::vector<const IoQueue*>& queues, Options options);
  ~IoWatchdog();  // returns immediately, or within a second while it looks up a name
  IoWatchdog(const IoWatchdog&) = delete;
  IoWatchdog& operator=(const IoWatchdog&) = delete;

  [[nodiscard]] Watch watch(const IoQueue& queue);
  void set_limit_s(double limit_s);  // 0: reports nothing

 private:
  // A place where work can hang, and what was reported about it.
  struct Hang {
    std::int64_t since_ns = 0;
    std::int64_t next_report_ns = 0;  // reported again at this age
    std::string told;                 // empty: nothing was reported
  };
  struct Seen {
    std::int64_t since_ns = 0;
    std::function<std::string()> describe;  // empty: nothing hangs
    const char* who = "";                   // what does not return
  };

  void forget(int number);
  void run();
  void look_at_queues();
  void look_at_calls();
  void judge(Hang& hang, const std::optional<Seen>& seen) const;

  const Options options_;
  std::mutex mutex_;  // guards the members up to stop_
  std::condition_variable changed_;
  std::int64_t limit_ns_;
  std::map<int, const IoQueue*> queues_;
  int next_number_ = 0;
  bool stop_ = false;
  // Used only by the thread.
  std::int64_t limit_now_ns_ = 0;
  std::map<int, Hang> hanging_queues_;
  std::map<pid_t, Hang> hanging_calls_;
  BlockedCalls calls_;
  std::thread thread_;
};

}  // namespace sluice::aio
