#include "swap/store_directory.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <string_view>
#include <thread>
#include <utility>

#include "aio/missing_folder.h"
#include "aio/storage_info.h"
#include "swap/store_files.h"
#include "swap/store_manifest.h"

namespace sluice::swap {
namespace {

using aio::FileLock;
using aio::FileSystem;

constexpr std::string_view kLockFile = "lock";
constexpr std::size_t kMaxRunLength = 64;
constexpr int kLockPollMs = 10;
// How often a folder is created again after its previous owner has just removed it.
constexpr int kTakeAttempts = 100;

bool is_run_name(std::string_view run) {
  const auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-';
  };
  return !run.empty() && run.size() <= kMaxRunLength && run.front() != '.' &&
         std::all_of(run.begin(), run.end(), allowed);
}

Status check_run_name(const std::string& run) {
  if (is_run_name(run)) return {};
  return Error(ErrorCode::kInvalidArgument,
               "\"" + run + "\" is not a name for a run: use 1 to " +
                   std::to_string(kMaxRunLength) +
                   " letters, digits, dots, dashes and underscores, with no dot first");
}

bool contains(const std::vector<std::string>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

bool is_ours(const std::vector<std::string>& names) {
  return contains(names, kLockFile) || contains(names, kOwnerFile);
}

std::string path_in(const std::string& directory, std::string_view name) {
  return (directory + "/").append(name);
}

constexpr const char* kNvmePath = "NVMe path";

// ---- classification ---------------------------------------------------------------------------

struct Judgement {
  StoreCondition condition;
  Status problem;  // the reason for kUnknown
};

// Classifies a folder whose lock is free or held by this process. This alone decides both taking
// and removing it.
Judgement judge(aio::IoQueue& queue, const std::string& directory, const std::string& run,
                const Result<std::optional<RunOwner>>& owner, const RunOptions& options) {
  const auto unknown = [](Error why) {
    return Judgement{StoreCondition::kUnknown, std::move(why)};
  };
  if (!owner.ok()) return unknown(owner.error());
  const Status scratch = options.adopts ? Status() : check_is_scratch(queue, directory, run);
  if (!scratch.ok()) return unknown(scratch.error());
  if (!owner->has_value()) {
    const auto made = queue.backend().files().exists(manifest_path(directory));
    if (!made.ok()) return unknown(made.error());
    if (!*made) return {StoreCondition::kUnclaimed, {}};
    return unknown(Error(ErrorCode::kAlreadyExists, directory + " has a store, but no " +
                                                        kOwnerFile + " that names its owner"));
  }
  RunOwner self = options.self;
  self.device = options.device(directory);
  return {sees_lock_of(self, **owner, options.locks_reach_all(directory))
              ? StoreCondition::kLeftover
              : StoreCondition::kElsewhere,
          {}};
}

// An error if the folder's owner may be alive although its lock is not visible here, or if the
// contents may be useful.
Status refuse_in_doubt(aio::IoQueue& queue, const std::string& directory, const std::string& run,
                       const RunOptions& options) {
  const auto owner = read_owner(queue, directory);
  Judgement judged = judge(queue, directory, run, owner, options);
  if (judged.condition == StoreCondition::kUnknown)
    return std::move(judged.problem).error().with_suffix(", or use another NVMe path");
  if (judged.condition != StoreCondition::kElsewhere) return {};
  const std::string way_out =
      options.adopts ? "copy the checkpoint whose state it has (sluice copy), and resume the copy"
                     : "remove its files (rm -r " + directory + ") and start again";
  return Error(
      ErrorCode::kBusy,
      directory + " belongs to process " + std::to_string((*owner)->pid) + " on host " +
          (*owner)->host + " since " + (*owner)->started_utc +
          ", and whether that process still runs is unknown here, because its lock may not be "
          "visible on this machine or mount. If it has ended, " +
          way_out + "; otherwise choose another run.dir, or a folder on a local drive");
}

// ---- taking -----------------------------------------------------------------------------------

Error in_use(aio::IoQueue& queue, const std::string& directory) {
  const auto owner = read_owner(queue, directory);
  std::string text = directory + " is in use by ";
  if (owner.ok() && owner->has_value()) {
    text += "process " + std::to_string((*owner)->pid) + " on host " + (*owner)->host + " since " +
            (*owner)->started_utc;
  } else {
    text += "a process that has not identified itself";
  }
  return Error(ErrorCode::kBusy, text + ": choose another name for this run, or stop that one");
}

// An error unless the folder is missing, empty or a run's folder.
Status refuse_foreign(FileSystem& files, const std::string& directory) {
  const auto names = files.list(directory);
  if (names.ok() && (names->empty() || is_ours(*names))) return {};
  if (!names.ok() && names.error().code() == ErrorCode::kNotFound) return {};
  if (!names.ok() && names.error().error_number() != ENOTDIR) return names.error();
  return Error(
      ErrorCode::kAlreadyExists,
      directory +
          (names.ok() ? " is a folder that no run created" : " is a file that no run created") +
          ": choose another name for this run, or move it away");
}

Result<std::unique_ptr<FileLock>> lock_patiently(FileSystem& files, const std::string& path,
                                                 int wait_ms) {
  for (int waited_ms = 0;; waited_ms += kLockPollMs) {
    auto lock = files.lock(path);
    if (lock.ok() || lock.error().code() != ErrorCode::kBusy || waited_ms >= wait_ms) return lock;
    std::this_thread::sleep_for(std::chrono::milliseconds(kLockPollMs));
  }
}

// Makes the folder durable and takes its lock. The lock's previous holder may have removed the
// folder between any two of these calls; then everything starts again.
Result<std::unique_ptr<FileLock>> make_and_lock(aio::IoQueue& queue, const std::string& parent,
                                                const std::string& directory, int wait_ms) {
  FileSystem& files = queue.backend().files();
  for (int attempt = 0; attempt < kTakeAttempts; ++attempt) {
    SLUICE_RETURN_IF_ERROR(refuse_foreign(files, directory));
    SLUICE_RETURN_IF_ERROR(files.make_directories(directory));
    SLUICE_RETURN_IF_ERROR(files.sync_directory(parent));
    auto lock = lock_patiently(files, lock_path(directory), wait_ms);
    if (!lock.ok() && lock.error().code() == ErrorCode::kNotFound) continue;
    if (!lock.ok() && lock.error().code() == ErrorCode::kBusy) return in_use(queue, directory);
    // From here on the folder is recognisable as Sluice's, whatever else remains after a power
    // loss.
    if (lock.ok()) SLUICE_RETURN_IF_ERROR(files.sync_directory(directory));
    return lock;
  }
  return Error(ErrorCode::kBusy, directory + " was removed by other processes " +
                                     std::to_string(kTakeAttempts) +
                                     " times while this run was opening it: try again");
}

// The errors of taking a folder, as far as they can be detected without creating anything.
Status refuse_before(aio::IoQueue& queue, const std::string& path, const std::string& run,
                     const RunOptions& options) {
  SLUICE_RETURN_IF_ERROR(check_run_name(run));
  FileSystem& files = queue.backend().files();
  SLUICE_RETURN_IF_ERROR(aio::require_folder(files, kNvmePath, path));
  SLUICE_RETURN_IF_ERROR(refuse_foreign(files, folder_of(path, run)));
  return refuse_in_doubt(queue, folder_of(path, run), run, options);
}

Status refuse_busy(aio::IoQueue& queue, const std::string& directory, int wait_ms) {
  FileSystem& files = queue.backend().files();
  SLUICE_ASSIGN_OR_RETURN(const bool has_lock, files.exists(lock_path(directory)));
  if (!has_lock) return {};
  const auto lock = lock_patiently(files, lock_path(directory), wait_ms);
  if (!lock.ok() && lock.error().code() == ErrorCode::kBusy) return in_use(queue, directory);
  return {};
}

// ---- inspection -------------------------------------------------------------------------------

Result<bool> is_folder(FileSystem& files, const std::string& path) {
  const auto names = files.list(path);
  if (names.ok()) return true;
  if (names.error().code() == ErrorCode::kPermission) return true;
  if (names.error().code() == ErrorCode::kNotFound) return false;
  if (names.error().error_number() == ENOTDIR) return false;
  return names.error();
}

Result<std::uint64_t> file_bytes(FileSystem& files, const std::string& path) {
  SLUICE_ASSIGN_OR_RETURN(const bool folder, is_folder(files, path));
  if (folder) return std::uint64_t{0};
  const auto file = files.open(path, {.direct = false});
  if (file.ok()) return (*file)->size_bytes();
  const ErrorCode code = file.error().code();
  if (code == ErrorCode::kNotFound || code == ErrorCode::kPermission) return std::uint64_t{0};
  return file.error();
}

Result<bool> is_locked(FileSystem& files, const std::string& directory) {
  const auto lock = files.lock(lock_path(directory));
  if (lock.ok()) return false;
  switch (lock.error().code()) {
    case ErrorCode::kNotFound:  // the folder has just disappeared
      return false;
    case ErrorCode::kBusy:
    case ErrorCode::kPermission:  // another user's: treated as in use
    case ErrorCode::kReadOnly:
      return true;
    default:
      return lock.error();
  }
}

// The contents of one of Sluice's folders. Its lock counts as free if this process holds it.
FoundRun look_into(aio::IoQueue& queue, const std::string& path, const std::string& run,
                   const std::vector<std::string>& names, const RunOptions& options,
                   bool lock_is_ours) {
  FileSystem& files = queue.backend().files();
  FoundRun found{.run = run, .path = path, .directory = folder_of(path, run)};
  bool locked = false;
  Status looked = [&]() -> Status {
    if (!lock_is_ours && contains(names, kLockFile)) {
      SLUICE_ASSIGN_OR_RETURN(locked, is_locked(files, found.directory));
    }
    for (const std::string& name : names) {
      SLUICE_ASSIGN_OR_RETURN(const std::uint64_t bytes,
                              file_bytes(files, path_in(found.directory, name)));
      found.bytes += bytes;
    }
    return {};
  }();
  const auto owner = read_owner(queue, found.directory);
  if (owner.ok()) found.owner = *owner;
  Judgement judged{StoreCondition::kUnknown, std::move(looked)};
  if (locked)
    judged = {StoreCondition::kInUse, {}};
  else if (judged.problem.ok())
    judged = judge(queue, found.directory, run, owner, options);
  found.condition = judged.condition;
  found.problem = std::move(judged.problem);
  return found;
}

// Empty if it is not a run's folder, or if it has just disappeared.
std::optional<FoundRun> look_at(aio::IoQueue& queue, const std::string& path,
                                const std::string& run, const RunOptions& options) {
  const auto names = queue.backend().files().list(folder_of(path, run));
  if (names.ok()) {
    if (!is_ours(*names)) return std::nullopt;
    return look_into(queue, path, run, *names, options, /*lock_is_ours=*/false);
  }
  const ErrorCode code = names.error().code();
  if (code == ErrorCode::kNotFound || code == ErrorCode::kPermission ||
      names.error().error_number() == ENOTDIR)
    return std::nullopt;
  return FoundRun{.run = run,
                  .path = path,
                  .directory = folder_of(path, run),
                  .condition = StoreCondition::kUnknown,
                  .problem = names.error()};
}

Status ignore_missing(Status removed) {
  if (!removed.ok() && removed.error().code() == ErrorCode::kNotFound) return {};
  return removed;
}

}  // namespace

bool RunOptions::local_locks(const std::string& folder) {
  return aio::storage_info(folder).locks_reach_all;
}

std::uint64_t RunOptions::device_of(const std::string& folder) {
  struct stat there {};
  return ::stat(folder.c_str(), &there) == 0 ? there.st_dev : 0;
}

Result<std::unique_ptr<StoreDirectory>> StoreDirectory::take(aio::IoQueue& queue,
                                                             const std::string& path,
                                                             const std::string& run,
                                                             const RunOptions& options) {
  const std::string directory = folder_of(path, run);
  // Checked before its lock is created, and again once no other process can change it.
  SLUICE_RETURN_IF_ERROR(refuse_before(queue, path, run, options));
  SLUICE_ASSIGN_OR_RETURN(auto lock, make_and_lock(queue, path, directory, options.lock_wait_ms));
  SLUICE_RETURN_IF_ERROR(refuse_in_doubt(queue, directory, run, options));
  SLUICE_ASSIGN_OR_RETURN(auto previous_owner, read_owner(queue, directory));
  RunOwner owner = options.self;
  owner.device = options.device(directory);
  SLUICE_RETURN_IF_ERROR(write_owner(queue, directory, owner));
  return std::unique_ptr<StoreDirectory>(
      new StoreDirectory(queue, path, run, std::move(lock), std::move(previous_owner)));
}

Result<StoreDirectories> StoreDirectory::take_all(aio::IoQueue& queue,
                                                  const std::vector<std::string>& paths,
                                                  const std::string& run,
                                                  const RunOptions& options) {
  StoreDirectories taken;
  for (const std::string& path : paths) {
    SLUICE_RETURN_IF_ERROR(refuse_before(queue, path, run, options));
    SLUICE_RETURN_IF_ERROR(refuse_busy(queue, folder_of(path, run), options.lock_wait_ms));
  }
  for (const std::string& path : paths) {
    SLUICE_ASSIGN_OR_RETURN(auto directory, take(queue, path, run, options));
    taken.push_back(std::move(directory));
  }
  return taken;
}

Result<std::unique_ptr<StoreDirectory>> StoreDirectory::hold(aio::IoQueue& queue,
                                                             const std::string& path,
                                                             const std::string& run,
                                                             const RunOptions& options) {
  FileSystem& files = queue.backend().files();
  const std::string directory = folder_of(path, run);
  SLUICE_RETURN_IF_ERROR(check_run_name(run));
  SLUICE_RETURN_IF_ERROR(refuse_foreign(files, directory));
  auto lock = lock_patiently(files, lock_path(directory), options.lock_wait_ms);
  if (!lock.ok() && lock.error().code() == ErrorCode::kBusy) return in_use(queue, directory);
  if (!lock.ok()) return std::move(lock).error();
  return std::unique_ptr<StoreDirectory>(
      new StoreDirectory(queue, path, run, std::move(*lock), std::nullopt));
}

StoreDirectory::StoreDirectory(aio::IoQueue& queue, std::string parent, std::string run,
                               std::unique_ptr<FileLock> lock,
                               std::optional<RunOwner> previous_owner)
    : queue_(queue),
      parent_(std::move(parent)),
      run_(std::move(run)),
      path_(folder_of(parent_, run_)),
      lock_(std::move(lock)),
      previous_owner_(std::move(previous_owner)) {}

Result<FoundRun> StoreDirectory::look(const RunOptions& options) const {
  SLUICE_ASSIGN_OR_RETURN(const auto names, queue_.backend().files().list(path_));
  return look_into(queue_, parent_, run_, names, options, /*lock_is_ours=*/true);
}

Status StoreDirectory::refuse_removal() const {
  FileSystem& files = queue_.backend().files();
  SLUICE_ASSIGN_OR_RETURN(const auto names, files.list(path_));
  for (const std::string& name : names) {
    SLUICE_ASSIGN_OR_RETURN(const bool folder, is_folder(files, path_in(path_, name)));
    if (folder) {
      return Error(ErrorCode::kInvalidArgument,
                   path_ + " is not removed, because it contains the folder " + name +
                       ", which no run created: move that away first");
    }
  }
  return {};
}

// Removes all files but the lock file.
Status StoreDirectory::remove_files() {
  FileSystem& files = queue_.backend().files();
  SLUICE_RETURN_IF_ERROR(refuse_removal());
  SLUICE_ASSIGN_OR_RETURN(const auto names, files.list(path_));
  for (const std::string& name : names) {
    if (name == kLockFile || name == kOwnerFile) continue;
    SLUICE_RETURN_IF_ERROR(ignore_missing(files.remove(path_in(path_, name))));
  }
  // Only afterwards remove the file that identifies the folder: a power loss must not leave the
  // others without it.
  SLUICE_RETURN_IF_ERROR(files.sync_directory(path_));
  return ignore_missing(files.remove(path_in(path_, kOwnerFile)));
}

Status StoreDirectory::remove_all() {
  FileSystem& files = queue_.backend().files();
  if (lock_ != nullptr) {
    SLUICE_RETURN_IF_ERROR(remove_files());
    SLUICE_RETURN_IF_ERROR(ignore_missing(files.remove(lock_path(path_))));
    lock_.reset();  // from now on the name may belong to another run
  }
  Status removed = ignore_missing(files.remove(path_));
  if (!removed.ok()) {
    const int error_number = removed.error().error_number();
    const bool taken = error_number == ENOTEMPTY || error_number == EEXIST;
    if (!taken) return removed;
  }
  return files.sync_directory(parent_);
}

Result<std::vector<FoundRun>> find_runs(aio::IoQueue& queue, const std::string& path,
                                        const RunOptions& options) {
  const auto names = queue.backend().files().list(path);
  if (!names.ok()) {
    SLUICE_RETURN_IF_ERROR(aio::require_folder(queue.backend().files(), kNvmePath, path));
    return names.error();
  }
  std::vector<FoundRun> runs;
  for (const std::string& name : *names) {
    if (!name.starts_with(kFolderPrefix)) continue;
    const std::string run = name.substr(kFolderPrefix.size());
    if (!is_run_name(run)) continue;
    auto found = look_at(queue, path, run, options);
    if (found) runs.push_back(std::move(*found));
  }
  return runs;
}

}  // namespace sluice::swap
