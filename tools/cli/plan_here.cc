#include "tools/cli/plan_here.h"

#include <chrono>
#include <cmath>

#include "aio/log.h"
#include "aio/terminal_line.h"
#include "engine/train/run_data.h"
#include "tools/cli/speeds_path.h"

namespace sluice::tools {

Result<engine::RunPlan> plan_here(const config::Config& config, const PlanHereOptions& options) {
  const std::int64_t now_unix_s = std::chrono::duration_cast<std::chrono::seconds>(
                                      std::chrono::system_clock::now().time_since_epoch())
                                      .count();
  TerminalLine line;
  const auto show = [&](const std::string& what, double fraction) {
    if (line.due())
      line.show("measuring " + what + ": " + std::to_string(std::lround(100 * fraction)) + "%");
  };
  return engine::plan_run(config, {.cache_path = speeds_path(),
                                   .refresh = options.refresh,
                                   .unix_s = now_unix_s,
                                   .machine = options.machine,
                                   .with_relief = options.with_relief,
                                   .on_progress = show});
}

void warn_of_data(const config::Config& config) {
  if (config.data.train.empty()) return;
  const Status checked = engine::RunData::check(config);
  if (!checked.ok())
    log::warning("sluice train would refuse the data: " + checked.error().message());
}

}  // namespace sluice::tools
