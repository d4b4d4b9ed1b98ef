#include "bench/gpu_recorder.h"

#include <torch/csrc/autograd/profiler_kineto.h>
#include <torch/cuda.h>

#include <filesystem>
#include <memory>
#include <set>
#include <system_error>

namespace sluice::bench {
namespace {

namespace profiler = torch::autograd::profiler;

// Ends the recording, however the work ends.
class Recording {
 public:
  Recording() {
    const profiler::ProfilerConfig config(profiler::ProfilerState::KINETO);
    const std::set<profiler::ActivityType> activities = {profiler::ActivityType::CUDA};
    profiler::prepareProfiler(config, activities);
    profiler::enableProfiler(config, activities);
  }
  ~Recording() {
    if (running_) static_cast<void>(profiler::disableProfiler());
  }
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;

  std::unique_ptr<profiler::ProfilerResult> end() {
    running_ = false;
    return profiler::disableProfiler();
  }

 private:
  bool running_ = true;
};

}  // namespace

Result<std::vector<GpuEvent>> record_gpu(const std::function<void()>& work,
                                         const std::string& trace_file) {
  torch::cuda::synchronize();
  Recording recording;
  work();
  torch::cuda::synchronize();
  const std::unique_ptr<profiler::ProfilerResult> recorded = recording.end();
  std::vector<GpuEvent> events;
  for (const profiler::KinetoEvent& event : recorded->events()) {
    if (event.deviceType() != c10::DeviceType::CUDA) continue;
    events.push_back({.name = event.name(),
                      .begin_ns = static_cast<std::int64_t>(event.startNs()),
                      .end_ns = static_cast<std::int64_t>(event.endNs())});
  }
  if (events.empty()) {
    return Error(ErrorCode::kInternal,
                 "the driver recorded no kernel: profiling may be switched off for this user, "
                 "leave --profile out");
  }
  if (!trace_file.empty()) {
    recorded->save(trace_file);
    if (std::error_code ignored; !std::filesystem::exists(trace_file, ignored))
      return Error(ErrorCode::kIo, "the trace could not be written to " + trace_file);
  }
  return events;
}

}  // namespace sluice::bench
