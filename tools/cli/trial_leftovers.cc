#include "tools/cli/trial_leftovers.h"

#include <algorithm>
#include <vector>

#include "aio/log.h"
#include "swap/store_inventory.h"
#include "tools/cli/open_queue.h"

namespace sluice::tools {

void remove_leftovers(const config::Config& config, const EndedTrial& trial,
                      aio::IoWatchdog& watchdog) {
  std::vector<std::string> paths = config.param_nvme_paths();
  const std::vector<std::string> more = config.optimizer_nvme_paths();
  paths.insert(paths.end(), more.begin(), more.end());
  std::sort(paths.begin(), paths.end());
  paths.erase(std::unique(paths.begin(), paths.end()), paths.end());
  if (paths.empty()) return;
  // Processes of other containers have the same numbers.
  const auto is_of_trial = [&](const swap::FoundRun& run) {
    return run.owner && run.owner->pid == trial.process &&
           run.owner->started_utc >= trial.started_utc;
  };
  const Status removed = [&]() -> Status {
    SLUICE_ASSIGN_OR_RETURN(const auto files, open_queue(watchdog));
    SLUICE_ASSIGN_OR_RETURN(const auto sweep,
                            swap::remove_leftovers(*files.queue, paths, is_of_trial));
    for (const swap::FoundRun& run : sweep.kept)
      if (is_of_trial(run)) log::warning("a trial's store is kept: " + swap::describe(run));
    return {};
  }();
  if (!removed.ok() && removed.error().code() != ErrorCode::kNotFound)
    log::warning("a trial's files could not be removed: " + removed.error().message());
}

}  // namespace sluice::tools
