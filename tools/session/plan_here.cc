#include "tools/session/plan_here.h"

#include <algorithm>
#include <cmath>

#include "aio/log.h"
#include "aio/terminal_line.h"
#include "aio/unix_time.h"
#include "engine/probe/machine_probe.h"
#include "engine/run/run_data.h"
#include "tools/session/speeds_path.h"

namespace sluice::tools {
namespace {

constexpr std::int64_t kSeriesSeconds = 3600;

}  // namespace

Result<engine::RunPlan> plan_here(const config::Config& config, const PlanHereOptions& options) {
  TerminalLine line;
  const auto show = [&](const std::string& what, double fraction) {
    if (line.due())
      line.show("measuring " + what + ": " + std::to_string(std::lround(100 * fraction)) + "%");
  };
  SLUICE_ASSIGN_OR_RETURN(
      engine::RunPlan plan,
      engine::plan_run(config, {.cache_path = speeds_path(),
                                .refresh = options.refresh,
                                .unix_s = unix_s_now(),
                                .disturbed_max_age_s = options.of_a_series ? kSeriesSeconds : 0,
                                .machine = options.machine,
                                .with_what_ifs = options.with_what_ifs,
                                .on_progress = show,
                                .ranks = options.ranks,
                                .link = options.link,
                                .with_growth = options.with_growth,
                                .with_longest_sequence = options.with_longest_sequence}));
  line.clear();
  const std::string busy = engine::busy_warning(plan.machine);
  if (!busy.empty()) log::warning(busy);
  return plan;
}

engine::LinkProbeOptions link_probe_here() {
  return {.cache_path = speeds_path(), .unix_s = unix_s_now()};
}

void judge_plan(const config::Config& config, const engine::ProbeReport& machine) {
  const auto& all = {machine.host_when, machine.drives_when, machine.gpu_when, machine.units_when,
                     machine.link_when};
  const bool from_file = std::any_of(all.begin(), all.end(),
                                     [](const engine::ProbedWhen& when) { return when.cached; });
  if (!from_file) {
    log::warning(
        "step times differ from the plan: this machine may be busy; sluice tune measures whole "
        "steps");
    return;
  }
  const std::string text = "step times differ from the plan: the plan's measurements are old, ";
  const Status forgotten = engine::forget_measurements(config, machine, unix_s_now());
  log::warning(forgotten.ok() ? text + "and will be repeated next time"
                              : text + "and stay in " + machine.cache_path + " (" +
                                    forgotten.error().message() +
                                    "): repeat them with sluice probe --refresh");
}

void warn_of_data(const config::Config& config) {
  if (config.data.train.empty()) return;
  const Status checked = engine::RunData::check(config);
  if (!checked.ok())
    log::warning("sluice train would refuse the data: " + checked.error().message());
}

}  // namespace sluice::tools
