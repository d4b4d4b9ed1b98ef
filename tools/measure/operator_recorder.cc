#include "tools/measure/operator_recorder.h"

#include <filesystem>
#include <memory>
#include <system_error>

#include "tools/measure/recording.h"

namespace sluice::tools {

Result<std::vector<GpuEvent>> record_operators(const std::function<void()>& work,
                                               const std::string& trace_file) {
  namespace profiler = torch::autograd::profiler;
  Recording recording(profiler::ActivityType::CPU);
  work();
  const std::unique_ptr<profiler::ProfilerResult> recorded = recording.end();
  std::vector<GpuEvent> events;
  for (const profiler::KinetoEvent& event : recorded->events()) {
    if (event.deviceType() != c10::DeviceType::CPU) continue;
    events.push_back({.name = event.name(),
                      .begin_ns = static_cast<std::int64_t>(event.startNs()),
                      .end_ns = static_cast<std::int64_t>(event.endNs())});
  }
  if (!trace_file.empty()) {
    recorded->save(trace_file);
    if (std::error_code ignored; !std::filesystem::exists(trace_file, ignored))
      return Error(ErrorCode::kIo, "the trace could not be written to " + trace_file);
  }
  return events;
}

}  // namespace sluice::tools
