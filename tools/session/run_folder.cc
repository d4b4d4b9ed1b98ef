#include "tools/session/run_folder.h"

#include <filesystem>
#include <random>
#include <utility>

#include "aio/log.h"
#include "aio/small_file.h"
#include "engine/checkpoint/remove_checkpoint.h"
#include "engine/checkpoint/run_directory.h"
#include "engine/exchange/kept_tokenizer.h"
#include "engine/run/run_checkpoints.h"

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
                   " is not empty: choose another --out, give --resume to continue the run "
                   "that is there, or --overwrite to replace it");
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
                       " is a link, and --overwrite removes nothing through one. Move it "
                       "away, or choose another --out");
    return engine::why_not(entry).with_suffix(
        ": --overwrite removes nothing that cannot be read. Move " + entry.path +
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
    return Error(ErrorCode::kBusy, "another process trains in " + directory +
                                       ": wait for it, end it, or choose another --out");
  }
  if (!lock.ok()) return std::move(lock).error();
  folder.lock_ = *std::move(lock);
  SLUICE_RETURN_IF_ERROR(check_entry(folder.queue(), directory, entry));  // again, now locked
  auto checkpoints = folder.checkpoints();
  SLUICE_ASSIGN_OR_RETURN(const auto leftovers, checkpoints.clean_leftovers());
  for (const std::string& name : leftovers)
    log::info("cleared up after a save that was interrupted: " + checkpoints.path() + "/" + name);
  if (entry == Entry::kOverwrite) SLUICE_RETURN_IF_ERROR(check_replaceable(files, checkpoints));
  return folder;
}

Status RunFolder::check_there() const {
  SLUICE_ASSIGN_OR_RETURN(const bool there, lock_->is_at(file(engine::kRunLockName)));
  if (there) return {};
  return Error(ErrorCode::kNotFound,
               directory_ + " is no longer there: was its drive unmounted, or was it moved?");
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
  SLUICE_ASSIGN_OR_RETURN(auto entry,
                          (is_own ? own : others).find_entry(clean.filename().string()));
  return std::optional(std::move(entry));
}

}  // namespace sluice::tools
