#include "engine/run/leftovers.h"

#include <cstdint>
#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "aio/io_watchdog.h"
#include "aio/log.h"
#include "aio/units.h"
#include "engine/device/host.h"
#include "swap/store_inventory.h"

namespace sluice::engine {
namespace {

// For files of a few hundred bytes.
class InventoryQueue {
 public:
  static Result<InventoryQueue> open(const config::Config& config) {
    InventoryQueue made;
    SLUICE_ASSIGN_OR_RETURN(made.backend_, make_run_backend(config));
    SLUICE_ASSIGN_OR_RETURN(made.queue_,
                            aio::IoQueue::create(*made.backend_, {.queue_depth = kQueueDepth}));
    if (config.run.io_watchdog_s > 0)
      made.watchdog_ = std::make_unique<aio::IoWatchdog>(
          std::vector<const aio::IoQueue*>{made.queue_.get()},
          aio::IoWatchdog::Options{.limit_ns =
                                       static_cast<std::int64_t>(config.run.io_watchdog_s * 1e9)});
    return made;
  }
  aio::IoQueue& operator*() { return *queue_; }

 private:
  static constexpr int kQueueDepth = 4;

  std::unique_ptr<aio::IoBackend> backend_;
  std::unique_ptr<aio::IoQueue> queue_;
  std::unique_ptr<aio::IoWatchdog> watchdog_;
};

// Of every tier, those that are there.
std::vector<std::string> paths_of(const config::Config& config) {
  std::set<std::string> paths;
  for (const auto& of_tier : {config.param_nvme_paths(), config.optimizer_nvme_paths(),
                              config.gradient_nvme_paths(), config.unit_input_nvme_paths()})
    for (const std::string& path : of_tier) {
      std::error_code error;
      if (std::filesystem::is_directory(path, error)) paths.insert(path);
    }
  return {paths.begin(), paths.end()};
}

std::string scrub_command(const std::vector<std::string>& paths) {
  std::string command = "sluice scrub";
  for (const std::string& path : paths) command += " " + path;
  return command;
}

Status clear_here(const config::Config& config, const std::vector<std::string>& paths) {
  SLUICE_ASSIGN_OR_RETURN(InventoryQueue queue, InventoryQueue::open(config));
  SLUICE_ASSIGN_OR_RETURN(const auto sweep, swap::remove_leftovers(*queue, paths));
  for (const swap::FoundRun& run : sweep.removed) log::info("removed: " + swap::describe(run));
  std::uint64_t kept_bytes = 0;
  for (const swap::FoundRun& run : sweep.kept)
    if (run.condition == swap::StoreCondition::kElsewhere ||
        run.condition == swap::StoreCondition::kUnknown)
      kept_bytes += run.bytes;
  // They may be of no use either: that is for the user to judge.
  if (kept_bytes > 0)
    log::info("stores whose runs may live elsewhere, or that cannot be read, hold " +
              format_bytes(kept_bytes) + " of these drives: " + scrub_command(paths) +
              " lists them");
  return {};
}

}  // namespace

Status clear_leftovers(const config::Config& config, Communicator* link) {
  const std::vector<std::string> paths = paths_of(config);
  const bool is_first = link == nullptr || link->rank(ProcessGroup::kNode) == 0;
  if (is_first && !paths.empty()) SLUICE_RETURN_IF_ERROR(clear_here(config, paths));
  return link == nullptr ? Status() : link->barrier(ProcessGroup::kNode);
}

std::string leftovers_note(const config::Config& config) {
  const std::vector<std::string> paths = paths_of(config);
  if (paths.empty()) return {};
  auto queue = InventoryQueue::open(config);
  if (!queue.ok()) return {};
  std::uint64_t bytes = 0;
  for (const std::string& path : paths) {
    const auto found = swap::find_runs(**queue, path);
    if (!found.ok()) continue;
    for (const swap::FoundRun& run : *found)
      if (run.condition == swap::StoreCondition::kLeftover) bytes += run.bytes;
  }
  if (bytes == 0) return {};
  return "killed runs have left " + format_bytes(bytes) +
         " on these drives, which this plan counts as taken: the next run removes that before it "
         "is "
         "planned, and so does " +
         scrub_command(paths) + " --remove-leftovers";
}

}  // namespace sluice::engine
