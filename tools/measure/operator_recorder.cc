#include "tools/measure/operator_recorder.h"

#include <memory>

#include "tools/measure/recording.h"

namespace sluice::tools {

Result<std::vector<GpuEvent>> record_operators(const std::function<void()>& work,
                                               const std::string& trace_file) {
  namespace profiler = torch::autograd::profiler;
  Recording recording(profiler::ActivityType::CPU);
  work();
  const std::unique_ptr<profiler::ProfilerResult> recorded = recording.end();
  std::vector<GpuEvent> events = events_of(*recorded, c10::DeviceType::CPU);
  SLUICE_RETURN_IF_ERROR(save_trace(*recorded, trace_file));
  return events;
}

}  // namespace sluice::tools
