// PhaseClock: how long the parts of a step took on the device that computes, which on a GPU is not
// when the host enqueued them.
//
// Threads: the one that trains.
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
  // Numbers count from 0; a mark that was there is made anew.
  virtual void mark(int index) = 0;
  // Between two marks, once the device has reached the second.
  virtual std::int64_t elapsed_ns(int from, int to) = 0;
  // Writes the host's time to `*where` when the device reaches this point. `where` must outlive
  // that; costs time on a GPU, so for traces only.
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

// Of the stream that is current; null in a build without CUDA.
std::unique_ptr<PhaseClock> make_cuda_phase_clock();

}  // namespace sluice::engine
