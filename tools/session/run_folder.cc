#include "tools/session/run_folder.h"

#include <filesystem>
#include <ostream>
#include <random>
#include <string>
#include <utility>

#include "aio/log.h"
#include "aio/small_file.h"
#include "engine/checkpoint/remove_checkpoint.h"
#include "engine/checkpoint/run_directory.h"
#include "engine/config/stored_config.h"
#include "engine/exchange/base_model.h"
#include "engine/exchange/kept_tokenizer.h"
#include "engine/run/run_checkpoints.h"
#include "tools/session/run_tokenizer.h"
#include "tools/session/train_start.h"

namespace sluice::tools {
namespace {

// Checks that a run may begin or continue in the directory.
Status check_entry(aio::IoQueue& queue, const std::string& directory, RunFolder::Entry entry) {
  SLUICE_RETURN_IF_ERROR(engine::check_run_directory(queue, directory));
  if (entry != RunFolder::Entry::kNew) return {};
  SLUICE_ASSIGN_OR_RETURN(const bool unused,
                          engine::is_unused_run_directory(queue.backend().files(), directory));
  if (unused) return {};
  return Error(ErrorCode::kAlreadyExists,
               directory +
                   " is not empty: choose another --out, or use --resume to continue the existing "
                   "run or --overwrite to replace it");
}

// Unreadable checkpoints may be more valuable than the user of --overwrite assumed.
Status check_replaceable(aio::FileSystem& files, const engine::CheckpointFolder& checkpoints) {
  SLUICE_ASSIGN_OR_RETURN(const auto list, checkpoints.list());
  for (const engine::CheckpointEntry& entry : list) {
    const bool linked = engine::is_linked(files, entry.path);
    if ((entry.complete() || entry.leftover) && !linked) continue;
    if (linked)
      return Error(ErrorCode::kInvalidArgument,
                   entry.path +
                       " is a link, and --overwrite removes nothing through links. Move it away, "
                       "or choose another --out");
    return engine::why_not(entry).with_suffix(
        ": --overwrite does not remove what cannot be read. Move " + entry.path +
        " away, or choose another --out");
  }
  return {};
}

std::string names_of(const std::vector<engine::CheckpointEntry>& list) {
  if (list.empty()) return "no checkpoint";
  if (list.size() == 1) return list.front().name;
  return std::to_string(list.size()) + " checkpoints, " + list.front().name + " to " +
         list.back().name;
}

}  // namespace

Result<RunFolder> RunFolder::open(const std::string& directory, Entry entry,
                                  aio::IoWatchdog& watchdog) {
  RunFolder folder;
  folder.directory_ = directory;
  SLUICE_ASSIGN_OR_RETURN(folder.files_, open_queue(watchdog));
  aio::FileSystem& files = folder.files_.backend->files();
  SLUICE_RETURN_IF_ERROR(files.make_directories(directory));
  SLUICE_RETURN_IF_ERROR(check_entry(folder.queue(), directory, entry));
  auto lock = files.lock(folder.file(engine::kRunLockName));
  if (!lock.ok() && lock.error().code() == ErrorCode::kBusy) {
    return Error(ErrorCode::kBusy, "another process is training in " + directory +
                                       ": wait for it, stop it, or choose another --out");
  }
  if (!lock.ok()) return std::move(lock).error();
  folder.lock_ = *std::move(lock);
  SLUICE_RETURN_IF_ERROR(check_entry(folder.queue(), directory, entry));  // again, now locked
  auto checkpoints = folder.checkpoints();
  SLUICE_ASSIGN_OR_RETURN(const auto leftovers, checkpoints.clean_leftovers());
  for (const std::string& name : leftovers)
    log::info("removed the files of an interrupted save: " + checkpoints.path() + "/" + name);
  if (entry == Entry::kOverwrite) SLUICE_RETURN_IF_ERROR(check_replaceable(files, checkpoints));
  return folder;
}

Status RunFolder::check_there() const {
  SLUICE_ASSIGN_OR_RETURN(const bool there, lock_->is_at(file(engine::kRunLockName)));
  if (there) return {};
  return Error(ErrorCode::kNotFound,
               directory_ + " no longer exists: was its drive unmounted, or was it moved?");
}

Result<RunFolder::Mark> RunFolder::leave_mark() const {
  std::random_device random;
  Mark mark{.path = file(engine::kSharedMarkName), .content = {}};
  for (int word = 0; word < 4; ++word) mark.content += std::to_string(random()) + " ";
  SLUICE_RETURN_IF_ERROR(aio::write_small_file(queue(), mark.path, mark.content));
  return mark;
}

Status RunFolder::remove_mark() const {
  return aio::remove_durably(files_.backend->files(), file(engine::kSharedMarkName));
}

engine::CheckpointFolder RunFolder::checkpoints() const {
  return {queue(), engine::RunCheckpoints::folder_of(directory_)};
}

// Checkpoints first: without them the remaining files cannot be mistaken for a run to resume.
Status RunFolder::clear() const {
  aio::FileSystem& files = files_.backend->files();
  SLUICE_ASSIGN_OR_RETURN(const auto list, checkpoints().list());
  log::info("--overwrite: removing the run in " + directory_ + ", " + names_of(list));
  for (const engine::CheckpointEntry& entry : list)
    SLUICE_RETURN_IF_ERROR(engine::remove_checkpoint(queue(), entry.path));
  SLUICE_RETURN_IF_ERROR(engine::remove_kept_tokenizer(files, directory_));
  return engine::remove_run_files(queue(), directory_);
}

Result<std::optional<engine::CheckpointEntry>> RunFolder::newest() const {
  SLUICE_RETURN_IF_ERROR(check_there());
  return checkpoints().newest();
}

Result<std::optional<engine::CheckpointEntry>> RunFolder::find_entry(
    const std::string& name) const {
  const auto own = checkpoints();
  if (name == "newest") return own.newest_entry();
  const std::filesystem::path path(name);
  if (!path.has_parent_path()) {
    SLUICE_ASSIGN_OR_RETURN(auto entry, own.find_entry(name));
    return std::optional(std::move(entry));
  }
  const auto clean = path.has_filename() ? path : path.parent_path();
  std::error_code ignored;  // folders that cannot be compared count as different
  const bool is_own = std::filesystem::equivalent(clean.parent_path(), own.path(), ignored);
  const engine::CheckpointFolder others(queue(), clean.parent_path().string());
  // A copy may have any name (sluice copy); in the run's own folder, names are those of steps.
  if (!is_own && !engine::parse_folder_name(clean.filename().string())) {
    SLUICE_ASSIGN_OR_RETURN(const bool is_copy, queue().backend().files().exists(
                                                    (clean / engine::kManifestName).string()));
    if (is_copy) return engine::look_at_checkpoint(queue(), clean.string());
  }
  SLUICE_ASSIGN_OR_RETURN(auto entry,
                          (is_own ? own : others).find_entry(clean.filename().string()));
  return std::optional(std::move(entry));
}

namespace {

// config.json, written next to the file that it replaces.
class StagedConfig {
 public:
  explicit StagedConfig(const RunFolder& folder) : folder_(folder) {}
  ~StagedConfig() { static_cast<void>(aio::remove_durably(files(), new_path())); }
  StagedConfig(const StagedConfig&) = delete;
  StagedConfig& operator=(const StagedConfig&) = delete;

  Status write(const config::Resolved& resolved) const {
    std::error_code error;
    const std::string here = std::filesystem::current_path(error).string();
    SLUICE_ASSIGN_OR_RETURN(const std::string text, config::run_folder_json(resolved, here));
    return aio::write_small_file(folder_.queue(), new_path(), text + "\n");
  }

  Status put() const {
    SLUICE_RETURN_IF_ERROR(files().rename(new_path(), folder_.file("config.json")));
    return files().sync_directory(folder_.path());
  }

 private:
  aio::FileSystem& files() const { return folder_.queue().backend().files(); }
  std::string new_path() const { return folder_.file("config.json.new"); }

  const RunFolder& folder_;
};

// For a run that begins here; a resumed run already has its base.
Status keep_base(const LocatedRun& located) {
  const auto& [wanted, folder, from] = located;
  if (from.checkpoint && from.own) return {};
  const std::string& weights =
      from.checkpoint ? from.checkpoint->path : wanted.resolved.config.model.init_from;
  if (weights.empty()) return {};
  SLUICE_ASSIGN_OR_RETURN(const engine::BaseModel base,
                          engine::base_model_of(folder.queue(), weights));
  return engine::keep_base_model(folder.queue(), base, folder.path());
}

}  // namespace

Result<std::unique_ptr<engine::MetricsLog>> take_folder(const LocatedRun& located,
                                                        std::ostream& notices) {
  const auto& [wanted, folder, from] = located;
  const config::Config& config = wanted.resolved.config;
  const StagedConfig staged(folder);
  const bool replaces = wanted.entry == RunFolder::Entry::kOverwrite;
  if (!replaces) SLUICE_RETURN_IF_ERROR(engine::mark_run_directory(folder.queue(), folder.path()));
  SLUICE_RETURN_IF_ERROR(staged.write(wanted.resolved));
  if (replaces) {
    SLUICE_RETURN_IF_ERROR(folder.clear());
    SLUICE_RETURN_IF_ERROR(engine::mark_run_directory(folder.queue(), folder.path()));
  }
  const std::int64_t first_step = (from.checkpoint ? from.checkpoint->step : 0) + 1;
  SLUICE_RETURN_IF_ERROR(keep_run_tokenizer(folder.queue(), config, wanted.tokenizer, first_step));
  SLUICE_RETURN_IF_ERROR(keep_base(located));
  const bool goes_on = from.checkpoint && from.own;
  const std::int64_t last_step = goes_on ? from.checkpoint->step : 0;
  std::unique_ptr<engine::MetricsLog> log;
  SLUICE_RETURN_IF_ERROR(
      make_way(folder, from, notices, [&](const std::string& cut_path) -> Status {
        auto opened = engine::MetricsLog::resume(folder.file("metrics.jsonl"), last_step, cut_path,
                                                 config.run.log_part_bytes());
        if (!opened.ok() && !cut_path.empty())
          static_cast<void>(folder.queue().backend().files().remove(cut_path));
        if (!opened.ok()) return std::move(opened).error();
        log = *std::move(opened);
        return {};
      }));
  if (log->cut_lines() > 0) {
    notices << "metrics of later steps, " << log->cut_lines() << " lines, are now in "
            << log->cut_path() << "\n";
  }
  SLUICE_RETURN_IF_ERROR(staged.put());
  return log;
}

}  // namespace sluice::tools
