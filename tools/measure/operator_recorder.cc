#include "tools/measure/operator_recorder.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <utility>

#include "tools/measure/phase_ranges.h"
#include "tools/measure/recording.h"

namespace sluice::tools {
namespace {

// A call made while a range was open belongs to that range's phase.
void give_phases(std::vector<GpuEvent> ranges, std::vector<GpuEvent>& calls) {
  const auto begins_before = [](std::int64_t at_ns, const GpuEvent& it) {
    return at_ns < it.begin_ns;
  };
  std::sort(ranges.begin(), ranges.end(),
            [](const GpuEvent& a, const GpuEvent& b) { return a.begin_ns < b.begin_ns; });
  for (GpuEvent& call : calls) {
    const auto next = std::upper_bound(ranges.begin(), ranges.end(), call.begin_ns, begins_before);
    if (next != ranges.begin() && call.begin_ns < std::prev(next)->end_ns)
      call.phase = std::prev(next)->phase;
  }
}

}  // namespace

Result<std::vector<GpuEvent>> record_operators(const std::function<void()>& work,
                                               const std::string& trace_file) {
  namespace profiler = torch::autograd::profiler;
  Recording recording({profiler::ActivityType::CPU});
  work();
  const std::unique_ptr<profiler::ProfilerResult> recorded = recording.end();
  std::vector<GpuEvent> events;
  std::vector<GpuEvent> ranges;  // not nested
  for (const profiler::KinetoEvent& event : recorded->events()) {
    if (event.deviceType() != c10::DeviceType::CPU) continue;
    GpuEvent call{.name = event.name(),
                  .begin_ns = static_cast<std::int64_t>(event.startNs()),
                  .end_ns = static_cast<std::int64_t>(event.endNs()),
                  .phase = phase_of_range(event.name())};
    (call.phase ? ranges : events).push_back(std::move(call));
  }
  give_phases(std::move(ranges), events);
  SLUICE_RETURN_IF_ERROR(save_trace(*recorded, trace_file));
  return events;
}

}  // namespace sluice::tools
