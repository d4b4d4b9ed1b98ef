// The parts of tools/measure/gpu_profile.h that group by phase.
#include <algorithm>
#include <array>
#include <utility>

#include "engine/observe/text_table.h"
#include "tools/measure/gpu_profile.h"

namespace sluice::tools {
namespace {

using engine::PassPhase;

// Events that belong to no pass form one group, the last.
constexpr std::size_t kGroups = engine::kPassPhases + 1;

std::size_t group_of(const GpuEvent& event) {
  const bool is_of_pass = event.phase && !engine::is_wait(*event.phase);
  return is_of_pass ? static_cast<std::size_t>(*event.phase) : kGroups - 1;
}

template <typename Times>
std::vector<PhaseTimes> by_phase(std::span<const GpuEvent> events, Times times) {
  if (std::none_of(events.begin(), events.end(), [](const auto& it) { return it.phase; }))
    return {};
  std::array<std::vector<GpuEvent>, kGroups> groups;
  for (const GpuEvent& event : events) groups[group_of(event)].push_back(event);
  std::vector<PhaseTimes> phases;
  for (std::size_t i = 0; i < kGroups; ++i) {
    PhaseTimes phase{
        .name = i + 1 < kGroups ? engine::phase_name(static_cast<PassPhase>(i)) : "the rest",
        .kernels = times(groups[i])};
    for (const GpuProfile::Kernel& kernel : phase.kernels) phase.seconds += kernel.seconds;
    if (!phase.kernels.empty()) phases.push_back(std::move(phase));
  }
  return phases;
}

}  // namespace

std::vector<PhaseTimes> kernels_by_phase(std::span<const GpuEvent> events) {
  return by_phase(events, [](const auto& group) { return profile_of(group, 1).kernels; });
}

// No phase begins or ends inside an operator, so an operator and its callees have the same phase.
std::vector<PhaseTimes> operators_by_phase(std::span<const GpuEvent> calls) {
  return by_phase(calls, [](const auto& group) { return self_times(group); });
}

std::string table_by_phase(const std::vector<PhaseTimes>& phases, const PhaseTable& options) {
  if (phases.empty()) return "";
  const double per_step = 1.0 / std::max(options.steps, 1);
  std::vector<engine::TextRow> rows = {{"by phase, per step", "calls", "time", "share"}};
  const auto add = [&](const std::string& name, std::uint64_t calls, double seconds) {
    const double share = options.step_s > 0 ? 100 * seconds * per_step / options.step_s : 0;
    rows.push_back(
        {name, calls > 0 ? engine::decimals(static_cast<double>(calls) * per_step, 1) : "",
         engine::decimals(1e3 * seconds * per_step, 3) + " ms", engine::decimals(share, 1) + "%"});
  };
  for (const PhaseTimes& phase : phases) {
    add(phase.name, 0, phase.seconds);
    GpuProfile::Kernel others{"  others", 0, 0};
    for (std::size_t i = 0; i < phase.kernels.size(); ++i) {
      const GpuProfile::Kernel& kernel = phase.kernels[i];
      if (i < options.shown) {
        add("  " + short_kernel_name(kernel.name), kernel.calls, kernel.seconds);
        continue;
      }
      others.calls += kernel.calls;
      others.seconds += kernel.seconds;
    }
    if (others.calls > 0) add(others.name, others.calls, others.seconds);
  }
  return engine::aligned(rows);
}

}  // namespace sluice::tools
