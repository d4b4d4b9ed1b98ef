// IoWatchdog: says which operation hangs, while it hangs, instead of a program that stands still in
// silence.
//
// A thread looks at the oldest block in flight of each queue. Once it has been with the drive for
// longer than the limit, a message names operation, file, offset and drive; again each time the
// wait has doubled; and once more when the drive has answered. It ends nothing: a drive or its link
// may come back, and what was written there meanwhile is not known.
//
// Threads: one of its own. The queues must outlive it.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "aio/io_queue.h"

namespace sluice::aio {

class IoWatchdog {
 public:
  struct Options {
    std::int64_t limit_ns = 30'000'000'000;  // > 0
    // Called on the watchdog's thread; by default log::warning().
    std::function<void(const std::string& message)> report;
  };

  IoWatchdog(const std::vector<const IoQueue*>& queues, Options options);
  ~IoWatchdog();  // at once
  IoWatchdog(const IoWatchdog&) = delete;
  IoWatchdog& operator=(const IoWatchdog&) = delete;

 private:
  struct Watched {
    const IoQueue* queue = nullptr;
    std::int64_t next_report_ns = 0;  // of the age of its oldest block
    std::int64_t reported_ns = 0;     // the age last told; 0: nothing was
    std::string told;                 // of what
  };

  void run();
  void look(Watched& watched) const;

  const Options options_;
  std::vector<Watched> watched_;  // the thread's
  std::mutex mutex_;
  std::condition_variable stop_changed_;
  bool stop_ = false;
  std::thread thread_;
};

// The block device and mount point that hold `path`, in words: "/dev/nvme0n1p2 (xfs, mounted at
// /nvme)"; empty where the machine does not say.
std::string describe_drive(const std::string& path);

}  // namespace sluice::aio
