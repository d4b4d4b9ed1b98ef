#include "tools/cli/run_folder.h"

#include <filesystem>
#include <utility>

#include "aio/log.h"
#include "engine/checkpoint/checkpoint_reader.h"
#include "engine/checkpoint/remove_checkpoint.h"
#include "engine/train/run_checkpoints.h"

namespace sluice::tools {
namespace {

constexpr const char* kLockName = "lock";
constexpr const char* kFiles[] = {"metrics.jsonl", "trace.json", "tokenizer.json", "config.json"};

// But for the lock.
bool is_empty(const std::string& directory) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(directory, error))
    if (entry.path().filename() != kLockName) return false;
  return true;
}

engine::CheckpointFolder checkpoints_of(aio::IoQueue& queue, const std::string& directory) {
  return {queue, engine::RunCheckpoints::folder_of(directory)};
}

}  // namespace

Result<RunFolder> RunFolder::open(const std::string& directory, Entry entry,
                                  aio::IoWatchdog& watchdog) {
  RunFolder folder;
  folder.directory_ = directory;
  SLUICE_ASSIGN_OR_RETURN(folder.files_, open_queue(watchdog));
  aio::FileSystem& files = folder.files_.backend->files();
  SLUICE_RETURN_IF_ERROR(files.make_directories(directory));
  if (entry == Entry::kNew && !is_empty(directory)) {
    return Error(ErrorCode::kAlreadyExists,
                 directory +
                     " is not empty: choose another --out, give --resume to go on with the run "
                     "that is there, or --overwrite to replace it");
  }
  auto lock = files.lock(folder.file(kLockName));
  if (!lock.ok() && lock.error().code() == ErrorCode::kBusy) {
    return Error(ErrorCode::kBusy, "another process trains in " + directory +
                                       ": wait for it, end it, or choose another --out");
  }
  if (!lock.ok()) return std::move(lock).error();
  folder.lock_ = *std::move(lock);
  if (entry == Entry::kOverwrite) SLUICE_RETURN_IF_ERROR(folder.clear());
  auto checkpoints = checkpoints_of(folder.queue(), directory);
  SLUICE_ASSIGN_OR_RETURN(const auto leftovers, checkpoints.clean_leftovers());
  for (const std::string& name : leftovers)
    log::info("removed what an interrupted save left: " + checkpoints.path() + "/" + name);
  return folder;
}

// Checkpoints first: without them what is left cannot be taken for a run to resume.
Status RunFolder::clear() {
  aio::FileSystem& files = files_.backend->files();
  SLUICE_ASSIGN_OR_RETURN(const auto list, checkpoints_of(queue(), directory_).list());
  for (const engine::CheckpointEntry& entry : list)
    SLUICE_RETURN_IF_ERROR(engine::remove_checkpoint(files, entry.path));
  for (const char* name : kFiles) {
    SLUICE_ASSIGN_OR_RETURN(const bool there, files.exists(file(name)));
    if (there) SLUICE_RETURN_IF_ERROR(files.remove(file(name)));
  }
  return {};
}

Result<std::optional<engine::CheckpointEntry>> RunFolder::find(const std::string& name) const {
  const auto own = checkpoints_of(queue(), directory_);
  if (name == "newest") return own.newest();
  const std::filesystem::path path(name);
  if (!path.has_parent_path()) {
    SLUICE_ASSIGN_OR_RETURN(auto entry, own.find(name));
    return std::optional(std::move(entry));
  }
  const auto clean = path.has_filename() ? path : path.parent_path();
  const engine::CheckpointFolder others(queue(), clean.parent_path().string());
  SLUICE_ASSIGN_OR_RETURN(auto entry, others.find(clean.filename().string()));
  return std::optional(std::move(entry));
}

Error RunFolder::with_advice(Error error, std::int64_t step) const {
  if (error.code() != ErrorCode::kCorrupt) return error;
  const auto list = checkpoints_of(queue(), directory_).list();
  if (!list.ok()) return error;
  for (auto entry = list->rbegin(); entry != list->rend(); ++entry) {
    if (entry->step >= step || !entry->complete()) continue;
    return std::move(error).with_suffix("; the one before it is " + entry->name +
                                        ": go on from there with --resume=" + entry->name);
  }
  return std::move(error).with_suffix("; there is none before it");
}

}  // namespace sluice::tools
