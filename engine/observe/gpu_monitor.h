// GpuMonitor: a GPU's utilisation, its power, and whether its clock is throttled, from its driver
// (NVML). A thread of its own samples them a few times a second.
//
// Values that the driver does not report are missing, never 0. There may be no NVML, a query may be
// unsupported (a MIG instance has no utilisation of its own), or the driver may not answer.
//
// Threads: its owner's. No call waits for the driver, except the destructor for up to a second. A
//          driver that hangs blocks only the monitor's thread, which keeps what it needs.
// Errors:  none ends anything; problem() says why there are no values.
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

// Plain data, which ranks exchange.
struct GpuUse {
  std::optional<double> utilization_percent;  // of the time during which a kernel ran
  std::optional<double> power_watts;
  std::optional<double> throttled_percent;  // of the samples: by heat, or by the power supply

  friend bool operator==(const GpuUse&, const GpuUse&) = default;
};

// For several ranks with a GPU each: the mean utilisation, the total power, and the throttling of
// the most throttled GPU, over the ranks with values. The power is missing unless all ranks have
// it.
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

  // Discards the samples so far.
  void restart();
  // Means since the last restart(). If there is no sample since then, the last one before it,
  // unless it is older than a few seconds.
  GpuUse use() const;
  // A sentence, once it is known that there will be no values.
  std::string problem() const;

 private:
  struct Shared;
  static void work(Shared& shared, const Options& options);

  const std::shared_ptr<Shared> shared_;  // shared with the thread
  std::thread thread_;
};

}  // namespace sluice::engine
