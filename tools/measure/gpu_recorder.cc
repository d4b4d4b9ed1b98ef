#include "tools/measure/gpu_recorder.h"

#include <torch/cuda.h>

#include <map>
#include <memory>

#include "tools/measure/phase_ranges.h"
#include "tools/measure/recording.h"

namespace sluice::tools {

Result<std::vector<GpuEvent>> record_gpu(const std::function<void()>& work,
                                         const GpuRecording& options) {
  namespace profiler = torch::autograd::profiler;
  torch::cuda::synchronize();
  using Activity = profiler::ActivityType;
  Recording recording(
      options.by_phase ? std::set{Activity::CPU, Activity::CUDA} : std::set{Activity::CUDA},
      {at::RecordScope::CUSTOM_CLASS});  // the scope of PhaseRanges; records no operators
  work();
  torch::cuda::synchronize();
  const std::unique_ptr<profiler::ProfilerResult> recorded = recording.end();
  std::vector<GpuEvent> events;
  std::map<std::uint64_t, engine::PassPhase> phases;  // by the correlation ID of their ranges
  for (const profiler::KinetoEvent& event : recorded->events())
    if (const auto phase = phase_of_range(event.name()); phase && event.correlationId() != 0)
      phases.emplace(event.correlationId(), *phase);
  for (const profiler::KinetoEvent& event : recorded->events()) {
    if (event.deviceType() != c10::DeviceType::CUDA) continue;
    events.push_back({.name = event.name(),
                      .begin_ns = static_cast<std::int64_t>(event.startNs()),
                      .end_ns = static_cast<std::int64_t>(event.endNs())});
    if (const auto phase = phases.find(event.linkedCorrelationId()); phase != phases.end())
      events.back().phase = phase->second;
  }
  if (events.empty()) {
    return Error(ErrorCode::kInternal,
                 "the driver recorded no kernel: profiling may be switched off for this user, so "
                 "kernels cannot be shown");
  }
  SLUICE_RETURN_IF_ERROR(save_trace(*recorded, options.trace_file));
  return events;
}

}  // namespace sluice::tools
