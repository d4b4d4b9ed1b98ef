// PhaseClock: how long the parts of a step took on the device that computes. A GPU does not run
// them when the host enqueues them.
//
// Threads: the training thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "aio/clock.h"

namespace sluice::engine {

class PhaseClock {
 public:
  virtual ~PhaseClock() = default;
  // Marks are numbered from 0; marking an index again replaces its mark.
  virtual void mark(int index) = 0;
  // The time between two marks, once the device has reached the second.
  virtual std::int64_t elapsed_ns(int from, int to) = 0;
  // Writes the host's time to `*where` when the device reaches this point. `where` must live until
  // then. This costs time on a GPU, so it is for traces only.
  virtual void stamp(std::int64_t* where) = 0;
};

class CpuPhaseClock final : public PhaseClock {
 public:
  void mark(int index) override {
    const auto i = static_cast<std::size_t>(index);
    if (i >= marks_.size()) marks_.resize(i + 1);
    marks_[i] = std::chrono::steady_clock::now();
  }
  std::int64_t elapsed_ns(int from, int to) override {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(
               marks_[static_cast<std::size_t>(to)] - marks_[static_cast<std::size_t>(from)])
        .count();
  }
  void stamp(std::int64_t* where) override { *where = clock_.now_ns(); }

 private:
  const SteadyClock clock_{};
  std::vector<std::chrono::steady_clock::time_point> marks_;
};

// Measures the current stream; null in a build without CUDA.
std::unique_ptr<PhaseClock> make_cuda_phase_clock();

}  // namespace sluice::engine
