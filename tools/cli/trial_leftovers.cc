#include "tools/cli/trial_leftovers.h"

#include <set>
#include <string>

#include "aio/log.h"
#include "swap/store_inventory.h"
#include "tools/cli/open_queue.h"

namespace sluice::tools {

void remove_leftovers(const config::Config& config, aio::IoWatchdog& watchdog) {
  std::set<std::string> paths;
  for (const auto& of_tier : {config.param_nvme_paths(), config.optimizer_nvme_paths()})
    paths.insert(of_tier.begin(), of_tier.end());
  if (paths.empty()) return;
  const auto files = open_queue(watchdog);
  for (const std::string& path : paths) {
    const Status removed =
        files.ok() ? swap::remove_leftovers(*files->queue, {path}).status() : files.status();
    if (!removed.ok() && removed.error().code() != ErrorCode::kNotFound)
      log::warning("a trial's files could not be removed: " + removed.error().message());
  }
}

}  // namespace sluice::tools
