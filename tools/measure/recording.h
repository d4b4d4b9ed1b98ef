// Recording: LibTorch's profiler, on until it is ended, however the work ends; and what it has
// recorded.
#pragma once

#include <torch/csrc/autograd/profiler_kineto.h>

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "aio/result.h"
#include "tools/measure/gpu_profile.h"

namespace sluice::tools {

class Recording {
 public:
  explicit Recording(torch::autograd::profiler::ActivityType activity) {
    namespace profiler = torch::autograd::profiler;
    const profiler::ProfilerConfig config(profiler::ProfilerState::KINETO);
    const std::set<profiler::ActivityType> activities = {activity};
    profiler::prepareProfiler(config, activities);
    profiler::enableProfiler(config, activities);
  }
  ~Recording() {
    if (running_) static_cast<void>(torch::autograd::profiler::disableProfiler());
  }
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;

  std::unique_ptr<torch::autograd::profiler::ProfilerResult> end() {
    running_ = false;
    return torch::autograd::profiler::disableProfiler();
  }

 private:
  bool running_ = true;
};

// Those of one kind of device.
std::vector<GpuEvent> events_of(const torch::autograd::profiler::ProfilerResult& recorded,
                                c10::DeviceType device);

// As a trace; an empty path: none. Errors: kIo.
Status save_trace(torch::autograd::profiler::ProfilerResult& recorded, const std::string& path);

}  // namespace sluice::tools
