#include "tools/measure/gpu_recorder.h"

#include <torch/cuda.h>

#include <memory>

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
  std::vector<GpuEvent> events = events_of(*recorded, c10::DeviceType::CUDA);
  if (events.empty()) {
    return Error(ErrorCode::kInternal,
                 "the driver recorded no kernel: profiling may be switched off for this user, "
                 "and its kernels cannot be shown");
  }
  SLUICE_RETURN_IF_ERROR(save_trace(*recorded, trace_file));
  return events;
}

}  // namespace sluice::tools
