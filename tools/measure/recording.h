// Recording: keeps LibTorch's profiler on until end() or destruction. save_trace() writes what was
// recorded to a file.
#pragma once

#include <torch/csrc/autograd/profiler_kineto.h>

#include <memory>
#include <set>
#include <string>
#include <unordered_set>

#include "aio/result.h"

namespace sluice::tools {

class Recording {
 public:
  // `scopes`: kinds of host ranges to record; empty: all.
  explicit Recording(const std::set<torch::autograd::profiler::ActivityType>& activities,
                     const std::unordered_set<at::RecordScope>& scopes = {}) {
    namespace profiler = torch::autograd::profiler;
    const profiler::ProfilerConfig config(profiler::ProfilerState::KINETO);
    profiler::prepareProfiler(config, activities);
    profiler::enableProfiler(config, activities, scopes);
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

// Writes a trace; an empty path writes none. Errors: kIo.
Status save_trace(torch::autograd::profiler::ProfilerResult& recorded, const std::string& path);

}  // namespace sluice::tools
