#include "tools/session/run_folder.h"

#include <algorithm>
#include <filesystem>
#include <random>
#include <utility>

#include "aio/log.h"
#include "aio/small_file.h"
#include "engine/checkpoint/remove_checkpoint.h"
#include "engine/exchange/kept_tokenizer.h"
#include "engine/observe/log_parts.h"
#include "engine/run/run_checkpoints.h"

namespace sluice::tools {
namespace {

constexpr const char* kLockName = "lock";
constexpr const char* kMarkName = "sluice-ranks";
constexpr const char* kFiles[] = {"metrics.jsonl",   "metrics-cut.jsonl", "events.jsonl",
                                  "trace.json",      kMarkName,           "tokenizer.json",
                                  "base_model.json", "config.json"};

// Except for the lock, and what ranks that were killed as they began have left.
Result<bool> is_empty(aio::FileSystem& files, const std::string& directory) {
  SLUICE_ASSIGN_OR_RETURN(const auto names, files.list(directory));
  return std::all_of(names.begin(), names.end(), [](const std::string& name) {
    return name == kLockName || name == kMarkName;
  });
}

// What cannot be read may be worth more than the user who gave --overwrite knew.
Status check_replaceable(const engine::CheckpointFolder& checkpoints) {
  SLUICE_ASSIGN_OR_RETURN(const auto list, checkpoints.list());
  for (const engine::CheckpointEntry& entry : list) {
    if (entry.complete() || entry.leftover) continue;
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
  SLUICE_ASSIGN_OR_RETURN(const bool empty, is_empty(files, directory));
  if (entry == Entry::kNew && !empty) {
    return Error(ErrorCode::kAlreadyExists,
                 directory +
                     " is not empty: choose another --out, give --resume to continue the run "
                     "that is there, or --overwrite to replace it");
  }
  auto lock = files.lock(folder.file(kLockName));
  if (!lock.ok() && lock.error().code() == ErrorCode::kBusy) {
    return Error(ErrorCode::kBusy, "another process trains in " + directory +
                                       ": wait for it, end it, or choose another --out");
  }
  if (!lock.ok()) return std::move(lock).error();
  folder.lock_ = *std::move(lock);
  auto checkpoints = folder.checkpoints();
  SLUICE_ASSIGN_OR_RETURN(const auto leftovers, checkpoints.clean_leftovers());
  for (const std::string& name : leftovers)
    log::info("cleared up after a save that was interrupted: " + checkpoints.path() + "/" + name);
  if (entry == Entry::kOverwrite) SLUICE_RETURN_IF_ERROR(check_replaceable(checkpoints));
  return folder;
}

Status RunFolder::check_there() const {
  SLUICE_ASSIGN_OR_RETURN(const bool there, lock_->is_at(file(kLockName)));
  if (there) return {};
  return Error(ErrorCode::kNotFound,
               directory_ + " is no longer there: was its drive unmounted, or was it moved?");
}

Result<RunFolder::Mark> RunFolder::leave_mark() const {
  std::random_device random;
  Mark mark{.path = file(kMarkName), .content = {}};
  for (int word = 0; word < 4; ++word) mark.content += std::to_string(random()) + " ";
  SLUICE_RETURN_IF_ERROR(aio::write_small_file(queue(), mark.path, mark.content));
  return mark;
}

Status RunFolder::remove_mark() const {
  return aio::remove_durably(files_.backend->files(), file(kMarkName));
}

engine::CheckpointFolder RunFolder::checkpoints() const {
  return {queue(), engine::RunCheckpoints::folder_of(directory_)};
}

// Checkpoints first: without them what is left cannot be taken for a run to resume.
Status RunFolder::clear() const {
  aio::FileSystem& files = files_.backend->files();
  SLUICE_ASSIGN_OR_RETURN(const auto list, checkpoints().list());
  log::info("--overwrite: removing the run in " + directory_ + ", " + names_of(list));
  for (const engine::CheckpointEntry& entry : list)
    SLUICE_RETURN_IF_ERROR(engine::remove_checkpoint(queue(), entry.path));
  SLUICE_RETURN_IF_ERROR(engine::remove_kept_tokenizer(files, directory_));
  for (const char* name : kFiles) {
    SLUICE_ASSIGN_OR_RETURN(const bool there, files.exists(file(name)));
    if (there) SLUICE_RETURN_IF_ERROR(files.remove(file(name)));
  }
  for (const char* name : {"metrics.jsonl", "events.jsonl"})
    for (const std::string& part : engine::log_parts(file(name)))
      SLUICE_RETURN_IF_ERROR(files.remove(part));
  return {};
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
  std::error_code ignored;  // folders that cannot be compared are not known to be one
  const bool is_own = std::filesystem::equivalent(clean.parent_path(), own.path(), ignored);
  const engine::CheckpointFolder others(queue(), clean.parent_path().string());
  SLUICE_ASSIGN_OR_RETURN(auto entry,
                          (is_own ? own : others).find_entry(clean.filename().string()));
  return std::optional(std::move(entry));
}

}  // namespace sluice::tools
