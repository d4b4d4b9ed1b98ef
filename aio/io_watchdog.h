// IoWatchdog: reports which file operation hangs, while it hangs, so that a program does not stand
// still in silence.
//
// A thread looks at the oldest block in flight of each queue, and at the file calls that threads of
// the process are blocked in (BlockedCalls). What takes longer than the limit is named: operation,
// file, offset and drive; again each time the wait has doubled; and once more when it is back. It
// ends nothing: a drive or its link may come back, and what was written in the meantime is not
// known.
//
// The thread asks no file system for anything, so that it does not hang with what it reports.
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
    // Also calls outside the queues; only one watchdog of a process does this, its main's.
    bool file_calls = false;
    // Called on the watchdog's thread; by default log::warning().
    std::function<void(const std::string& message)> report = {};
  };

  // A queue is watched while this lives; both the queue and the watchdog must outlive it.
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
  ~IoWatchdog();  // immediately, or within a second where it is just looking up a name
  IoWatchdog(const IoWatchdog&) = delete;
  IoWatchdog& operator=(const IoWatchdog&) = delete;

  [[nodiscard]] Watch watch(const IoQueue& queue);
  void set_limit_s(double limit_s);  // 0: reports nothing

 private:
  // A place where work can hang, and what was reported of it.
  struct Hang {
    std::int64_t since_ns = 0;
    std::int64_t next_report_ns = 0;  // of its age
    std::string told;                 // empty: nothing was
  };
  struct Seen {
    std::int64_t since_ns = 0;
    std::function<std::string()> describe;  // empty: nothing hangs after all
    const char* who = "";                   // does not come back
  };

  void forget(int number);
  void run();
  void look_at_queues();
  void look_at_calls();
  void judge(Hang& hang, const std::optional<Seen>& seen) const;

  const Options options_;
  std::mutex mutex_;  // guards the next four
  std::condition_variable changed_;
  std::int64_t limit_ns_;
  std::map<int, const IoQueue*> queues_;
  int next_number_ = 0;
  bool stop_ = false;
  // The thread's own.
  std::int64_t limit_now_ns_ = 0;
  std::map<int, Hang> hanging_queues_;
  std::map<pid_t, Hang> hanging_calls_;
  BlockedCalls calls_;
  std::thread thread_;
};

}  // namespace sluice::aio
