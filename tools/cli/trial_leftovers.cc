#include "tools/cli/trial_leftovers.h"

#include <set>
#include <string>
#include <vector>

#include "aio/log.h"
#include "swap/store_inventory.h"
#include "tools/session/open_queue.h"

namespace sluice::tools {

void remove_leftovers(const config::Config& config, aio::IoWatchdog& watchdog) {
  std::set<std::string> named;
  for (const auto& of_tier : {config.param_nvme_paths(), config.optimizer_nvme_paths()})
    named.insert(of_tier.begin(), of_tier.end());
  if (named.empty()) return;
  const std::vector<std::string> paths(named.begin(), named.end());
  const auto files = open_queue(watchdog);
  const Status removed =
      files.ok() ? swap::remove_leftovers(*files->queue, paths).status() : files.status();
  if (!removed.ok() && removed.error().code() != ErrorCode::kNotFound)
    log::warning("a trial's files could not be removed: " + removed.error().message());
}

}  // namespace sluice::tools
