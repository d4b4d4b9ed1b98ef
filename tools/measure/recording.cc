#include "tools/measure/recording.h"

#include <cstdint>
#include <filesystem>
#include <system_error>

namespace sluice::tools {

std::vector<GpuEvent> events_of(const torch::autograd::profiler::ProfilerResult& recorded,
                                c10::DeviceType device) {
  std::vector<GpuEvent> events;
  for (const torch::autograd::profiler::KinetoEvent& event : recorded.events()) {
    if (event.deviceType() != device) continue;
    events.push_back({.name = event.name(),
                      .begin_ns = static_cast<std::int64_t>(event.startNs()),
                      .end_ns = static_cast<std::int64_t>(event.endNs())});
  }
  return events;
}

Status save_trace(torch::autograd::profiler::ProfilerResult& recorded, const std::string& path) {
  if (path.empty()) return {};
  recorded.save(path);
  if (std::error_code ignored; !std::filesystem::exists(path, ignored))
    return Error(ErrorCode::kIo, "the trace could not be written to " + path);
  return {};
}

}  // namespace sluice::tools
