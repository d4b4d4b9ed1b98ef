#include "tools/measure/gpu_recorder.h"

#include <torch/cuda.h>

#include <filesystem>
#include <memory>
#include <system_error>

#include "tools/measure/recording.h"

namespace sluice::tools {

Result<std::vector<GpuEvent>> record_gpu(const std::function<void()>& work,
                                         const std::string& trace_file) {
  namespace profiler = torch::autograd::profiler;
  torch::cuda::synchronize();
  Recording recording(profiler::ActivityType::CUDA);
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
                 "and its kernels cannot be shown");
  }
  if (!trace_file.empty()) {
    recorded->save(trace_file);
    if (std::error_code ignored; !std::filesystem::exists(trace_file, ignored))
      return Error(ErrorCode::kIo, "the trace could not be written to " + trace_file);
  }
  return events;
}

}  // namespace sluice::tools
