#include "bench/device_clock.h"

#include <c10/core/Event.h>

#ifdef SLUICE_HAS_CUDA
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#endif

namespace sluice::bench {

#ifdef SLUICE_HAS_CUDA

bool DeviceClock::has_cuda() { return c10::cuda::device_count() > 0; }

DeviceClock::DeviceClock(bool cuda) : cuda_(cuda) {
  if (!cuda) return;
  first_ = std::make_unique<c10::Event>(c10::kCUDA, c10::EventFlag::BACKEND_DEFAULT);
  last_ = std::make_unique<c10::Event>(c10::kCUDA, c10::EventFlag::BACKEND_DEFAULT);
}

void DeviceClock::start() {
  if (cuda_) {
    c10::cuda::device_synchronize();
    c10::cuda::CUDACachingAllocator::resetPeakStats(c10::cuda::current_device());
    first_->record(c10::cuda::getCurrentCUDAStream().unwrap());
  }
  begin_ = std::chrono::steady_clock::now();
}

double DeviceClock::stop_ms() {
  if (cuda_) {
    last_->record(c10::cuda::getCurrentCUDAStream().unwrap());
    last_->synchronize();
    return first_->elapsedTime(*last_);
  }
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin_)
      .count();
}

std::uint64_t DeviceClock::allocated_bytes() const {
  if (!cuda_) return 0;
  const auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(c10::cuda::current_device());
  return static_cast<std::uint64_t>(stats.allocated_bytes[0].current);
}

std::uint64_t DeviceClock::peak_bytes() const {
  if (!cuda_) return 0;
  const auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(c10::cuda::current_device());
  return static_cast<std::uint64_t>(stats.allocated_bytes[0].peak);
}

#else

bool DeviceClock::has_cuda() { return false; }

DeviceClock::DeviceClock(bool cuda) : cuda_(cuda) {}

void DeviceClock::start() { begin_ = std::chrono::steady_clock::now(); }

double DeviceClock::stop_ms() {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin_)
      .count();
}

std::uint64_t DeviceClock::allocated_bytes() const { return 0; }
std::uint64_t DeviceClock::peak_bytes() const { return 0; }

#endif

DeviceClock::~DeviceClock() = default;

}  // namespace sluice::bench
