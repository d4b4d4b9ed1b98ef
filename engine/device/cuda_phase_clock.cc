#include <ATen/cuda/CUDAEvent.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>

#include <memory>
#include <vector>

#include "engine/device/phase_clock.h"

namespace sluice::engine {
namespace {

class CudaPhaseClock final : public PhaseClock {
 public:
  void mark(int index) override {
    const auto i = static_cast<std::size_t>(index);
    while (i >= marks_.size()) marks_.emplace_back(cudaEventDefault);
    marks_[i].record(c10::cuda::getCurrentCUDAStream());
  }
  std::int64_t elapsed_ns(int from, int to) override {
    marks_[static_cast<std::size_t>(to)].synchronize();
    return static_cast<std::int64_t>(1e6F * marks_[static_cast<std::size_t>(from)].elapsed_time(
                                                marks_[static_cast<std::size_t>(to)]));
  }

  void stamp(std::int64_t* where) override {
    C10_CUDA_CHECK(cudaLaunchHostFunc(
        c10::cuda::getCurrentCUDAStream().stream(),
        [](void* it) noexcept { *static_cast<std::int64_t*>(it) = SteadyClock().now_ns(); },
        where));
  }

 private:
  std::vector<at::cuda::CUDAEvent> marks_;
};

}  // namespace

std::unique_ptr<PhaseClock> make_cuda_phase_clock() { return std::make_unique<CudaPhaseClock>(); }

}  // namespace sluice::engine
