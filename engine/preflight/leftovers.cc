#include "engine/preflight/leftovers.h"

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "aio/io_watchdog.h"
#include "aio/log.h"
#include "aio/units.h"
#include "engine/budget/stripe_plan.h"
#include "engine/checkpoint/checkpoint_folder.h"
#include "engine/checkpoint/checkpoint_manifest.h"
#include "engine/checkpoint/checkpoint_names.h"
#include "engine/checkpoint/remove_checkpoint.h"
#include "engine/checkpoint/run_directory.h"
#include "engine/device/host.h"
#include "engine/preflight/nvme_folders.h"
#include "swap/frozen_store.h"
#include "swap/store_files.h"
#include "swap/store_inventory.h"

namespace sluice::engine {
namespace {

// A queue for files of a few hundred bytes.
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

// The paths of every tier that may be used.
std::vector<std::string> paths_of(const config::Config& config) {
  const std::vector<std::string> named = nvme_folders(config);
  std::set<std::string> paths(named.begin(), named.end());
  if (config.placement.gradients_to_nvme != Tristate::kOff)
    for (const std::string& path : config.gradient_nvme_paths()) paths.insert(path);
  if (config.placement.unit_inputs_to_nvme != Tristate::kOff)
    for (const std::string& path : config.unit_input_nvme_paths()) paths.insert(path);
  return {paths.begin(), paths.end()};
}

// By path, for the paths that exist and can be listed.
std::map<std::string, std::vector<swap::FoundRun>> found_on(aio::IoQueue& queue,
                                                            const std::vector<std::string>& paths) {
  std::map<std::string, std::vector<swap::FoundRun>> all;
  for (const std::string& path : paths) {
    auto found = swap::find_runs(queue, path);
    if (found.ok())
      all.emplace(path, *std::move(found));
    else if (found.error().code() != ErrorCode::kNotFound)
      log::info("files left by killed runs on " + path +
                " cannot be listed: " + found.error().message());
  }
  return all;
}

std::string scrub_command(const std::vector<std::string>& paths) {
  std::string command = "sluice scrub";
  for (const std::string& path : paths) command += " " + path;
  return command;
}

// Whether a checkpoint in the folder has its state in a store. What cannot be read may have.
Result<bool> may_be_named(aio::IoQueue& queue, const std::string& folder) {
  SLUICE_ASSIGN_OR_RETURN(const auto names, queue.backend().files().list(folder));
  for (const std::string& name : names) {
    const auto manifest =
        read_checkpoint_manifest(queue, std::string(folder).append("/").append(name));
    const bool has_none = !manifest.ok() && manifest.error().code() == ErrorCode::kNotFound;
    if (!has_none && (!manifest.ok() || manifest->records)) return true;
  }
  return false;
}

// The store in which a run of the configuration saves in place.
struct OwnStore {
  explicit OwnStore(const config::Config& config)
      : name(store_name(config, "optimizer", offload::RankPart())),
        run(from_the_root(config.run.dir)),
        checkpoints(run + "/" + std::string(kCheckpointsFolder)) {}

  bool is_of(const swap::FrozenMark& mark) const {
    return parent_folder(mark.checkpoint) == checkpoints;
  }

  std::string name;
  std::string run;
  std::string checkpoints;
};

// A run that was killed between freezing its first state and naming it leaves a store that seems to
// hold a checkpoint. Only that run's next start can tell that none names it: its folder is there,
// and has no checkpoint in a store.
Status clear_unnamed(const OwnStore& own, const std::vector<std::string>& paths,
                     aio::IoQueue& queue) {
  const auto& [name, run, checkpoints] = own;
  aio::FileSystem& files = queue.backend().files();
  SLUICE_ASSIGN_OR_RETURN(const bool is_there, files.exists(run + "/" + kRunMarkName));
  if (!is_there) return {};
  bool marked = false;
  for (const std::string& path : paths) {
    SLUICE_ASSIGN_OR_RETURN(const auto mark,
                            swap::read_frozen_mark(queue, swap::folder_of(path, name)));
    if (!mark) continue;
    if (mark->named || !own.is_of(*mark)) return {};
    marked = true;
  }
  if (!marked) return {};
  SLUICE_ASSIGN_OR_RETURN(const bool had_saved, files.exists(checkpoints));
  if (had_saved) {
    SLUICE_ASSIGN_OR_RETURN(const bool named, may_be_named(queue, checkpoints));
    if (named) return {};
  }
  SLUICE_ASSIGN_OR_RETURN(const auto removed, swap::remove_run(queue, paths, name));
  for (const swap::FoundRun& found : removed)
    log::info("removed " + found.directory + ", which no checkpoint needs");
  return {};
}

Status clear_here(const config::Config& config) {
  const std::vector<std::string> named = paths_of(config);
  if (named.empty()) return {};
  SLUICE_ASSIGN_OR_RETURN(InventoryQueue queue, InventoryQueue::open(config));
  if (config.run.checkpoint_in_place)
    SLUICE_RETURN_IF_ERROR(clear_unnamed(OwnStore(config), config.optimizer_nvme_paths(), *queue));
  std::vector<std::string> paths;
  for (const auto& [path, runs] : found_on(*queue, named)) paths.push_back(path);
  SLUICE_ASSIGN_OR_RETURN(const auto sweep, swap::remove_leftovers(*queue, paths));
  for (const swap::FoundRun& run : sweep.removed) log::info("removed: " + swap::describe(run));
  std::uint64_t kept_bytes = 0;
  for (const swap::FoundRun& run : sweep.kept)
    if (run.condition == swap::StoreCondition::kElsewhere ||
        run.condition == swap::StoreCondition::kUnknown)
      kept_bytes += run.bytes;
  // These stores may be useless, too, but only the user can decide that.
  if (kept_bytes > 0)
    log::info("unreadable stores and stores of runs that may be active on other hosts take " +
              format_bytes(kept_bytes) + " of these drives: " + scrub_command(paths) +
              " lists them");
  return {};
}

}  // namespace

Status clear_leftovers(const config::Config& config, Communicator& link) {
  if (link.rank(ProcessGroup::kNode) == 0) {
    const Status cleared = clear_here(config);
    if (!cleared.ok())
      log::warning("files left by killed runs could not be removed from the drives: " +
                   cleared.error().message());
  }
  return link.barrier(ProcessGroup::kNode);
}

Status remove_stored_run(const config::Config& config, aio::IoQueue& queue) {
  const OwnStore own(config);
  SLUICE_ASSIGN_OR_RETURN(const auto list, CheckpointFolder(queue, own.checkpoints).list());
  for (const CheckpointEntry& entry : list) {
    const auto manifest = read_checkpoint_manifest(queue, entry.path);
    if (!manifest.ok() || !manifest->records || manifest->records->store.run != own.name) continue;
    const std::vector<std::string>& paths = manifest->records->store.paths;
    bool is_own = true;
    // Once the checkpoint is gone, each start of the run may remove a store with such a mark.
    for (const std::string& path : paths) {
      const std::string folder = swap::folder_of(path, own.name);
      SLUICE_ASSIGN_OR_RETURN(auto mark, swap::read_frozen_mark(queue, folder));
      is_own = is_own && mark && own.is_of(*mark);
      if (!is_own) break;
      mark->named = false;
      SLUICE_RETURN_IF_ERROR(swap::write_frozen_mark(queue, folder, *mark));
    }
    if (!is_own) continue;
    SLUICE_RETURN_IF_ERROR(remove_checkpoint(queue, entry.path));
    SLUICE_RETURN_IF_ERROR(clear_unnamed(own, paths, queue));
  }
  return {};
}

std::string leftovers_note(const config::Config& config) {
  const std::vector<std::string> named = paths_of(config);
  auto queue = InventoryQueue::open(config);
  if (named.empty() || !queue.ok()) return {};
  std::uint64_t bytes = 0;
  std::vector<std::string> paths;
  for (const auto& [path, runs] : found_on(**queue, named)) {
    paths.push_back(path);
    for (const swap::FoundRun& run : runs)
      if (run.condition == swap::StoreCondition::kLeftover) bytes += run.bytes;
  }
  if (bytes == 0) return {};
  return "killed runs have left " + format_bytes(bytes) +
         " on these drives: the next run removes them before it is planned, and so does " +
         scrub_command(paths) + " --remove-leftovers";
}

}  // namespace sluice::engine
