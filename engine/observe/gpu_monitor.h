// GpuMonitor: how busy a GPU is, what power it draws and whether its clock is held down, as its
// driver says (NVML), asked a few times a second by a thread of its own.
//
// What the driver does not say is missing, never 0: where there is no NVML, where it does not
// support the question (a MIG instance has no utilisation of its own), where it does not answer.
//
// Threads: its owner's. None of its calls waits for the driver, not even the destructor for more
// than a second: a driver that hangs keeps the thread and what it needs, and nobody else.
// Errors:  none ends anything; problem() says why nothing is known.
#pragma once

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>

namespace sluice::engine {

// Plain data, as ranks send it to each other.
struct GpuUse {
  std::optional<double> utilization_percent;  // of the time, while some kernel ran
  std::optional<double> power_watts;
  std::optional<double> throttled_percent;  // of the samples: by heat, or by the power supply

  friend bool operator==(const GpuUse&, const GpuUse&) = default;
};

// Of several ranks with a GPU each: the mean utilisation, the power of all, and of the one that is
// throttled most; of those that know. The power is missing unless all know theirs.
GpuUse use_of_all(std::span<const GpuUse> ranks);

class GpuMonitor {
 public:
  struct Options {
    std::string bus_id;  // "0000:18:00.0"
    std::string library = "libnvidia-ml.so.1";
    std::chrono::milliseconds every{200};
  };
  explicit GpuMonitor(Options options);
  ~GpuMonitor();
  GpuMonitor(const GpuMonitor&) = delete;
  GpuMonitor& operator=(const GpuMonitor&) = delete;

  // Forgets the samples so far.
  void restart();
  // Means since the last restart(). Where that was too short for a sample, the last one, which is
  // about the time before, unless it is older than a few seconds.
  GpuUse use() const;
  // A sentence, once it is known that nothing will be.
  std::string problem() const;

 private:
  struct Shared;
  static void work(Shared& shared, const Options& options);

  const std::shared_ptr<Shared> shared_;  // the thread's, too
  std::thread thread_;
};

}  // namespace sluice::engine
