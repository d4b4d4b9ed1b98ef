// DeviceClock: measures the time and the activation memory of calls on the CPU or on the current
// CUDA device, with its events and its allocator's statistics. Without a GPU memory is not
// measured.
//
// Threads: one.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>

namespace c10 {  // NOLINT(readability-identifier-naming): LibTorch's
struct Event;
}

namespace sluice::bench {

class DeviceClock {
 public:
  explicit DeviceClock(bool cuda);
  ~DeviceClock();
  DeviceClock(const DeviceClock&) = delete;
  DeviceClock& operator=(const DeviceClock&) = delete;

  static bool has_cuda();

  // Waits for all work queued before, then starts the time and the peak.
  void start();
  // Waits for all work queued since start().
  double stop_ms();

  std::uint64_t allocated_bytes() const;
  std::uint64_t peak_bytes() const;  // since start()

 private:
  bool cuda_;
  std::chrono::steady_clock::time_point begin_;
  std::unique_ptr<c10::Event> first_;
  std::unique_ptr<c10::Event> last_;
};

}  // namespace sluice::bench
