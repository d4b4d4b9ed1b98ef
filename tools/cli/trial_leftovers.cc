#include "tools/cli/trial_leftovers.h"

#include <set>
#include <string>

#include "aio/log.h"
#include "swap/run_directory.h"
#include "tools/cli/open_queue.h"

namespace sluice::tools {
namespace {

Status remove_below(aio::IoQueue& queue, const std::string& path, int process) {
  SLUICE_ASSIGN_OR_RETURN(const auto runs, swap::find_runs(queue, path));
  for (const swap::FoundRun& run : runs) {
    if (run.in_use || !run.same_machine || !run.owner || run.owner->pid != process) continue;
    SLUICE_ASSIGN_OR_RETURN(const auto folder, swap::RunDirectory::take(queue, path, run.run));
    SLUICE_RETURN_IF_ERROR(folder->remove_all());
  }
  return {};
}

}  // namespace

void remove_leftovers(const config::Config& config, int process, aio::IoWatchdog& watchdog) {
  std::set<std::string> paths;
  for (const auto& of_tier : {config.param_nvme_paths(), config.optimizer_nvme_paths()})
    paths.insert(of_tier.begin(), of_tier.end());
  if (paths.empty()) return;
  const auto files = open_queue(watchdog);
  for (const std::string& path : paths) {
    const Status removed = files.ok() ? remove_below(*files->queue, path, process) : files.status();
    if (!removed.ok() && removed.error().code() != ErrorCode::kNotFound)
      log::warning("a trial's files could not be removed: " + removed.error().message());
  }
}

}  // namespace sluice::tools
