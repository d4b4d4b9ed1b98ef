// StoreDirectory: one run's own folder under an NVMe path, <path>/sluice-<run>, held by a lock
// while the run lives.
//
// The lock (<folder>/lock) ends with the process, however it dies; the files stay, so what a killed
// run left is a folder that holds files but no lock. Folders named sluice-* without a `lock` or
// owner.json in them are not ours and never touched. Through a power loss at any moment a
// folder of ours stays recognisable as such, or is empty or gone.
//
// A free lock proves that the folder's owner ended where the owner's lock would be seen here
// (sees_lock_of()): of a run of this machine, on a local drive. Another owner's folder is refused,
// and so is one that cannot be read. One judgement serves who takes a folder and who removes one:
// StoreCondition. What is refused is left as it was, byte for byte.
//
// Threads: take() and find_runs() from any thread and process at once; one thread at a time for one
//          StoreDirectory.
// Memory:  the names of one folder.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "aio/file_system.h"
#include "aio/io_queue.h"
#include "aio/result.h"
#include "swap/run_owner.h"

namespace sluice::swap {

// On whose behalf a folder is taken or looked at, and how patiently.
struct RunOptions {
  RunOwner self = this_process();  // its device is found out for each folder
  int lock_wait_ms = 1000;         // others' find_runs() and remove_all() hold locks for moments
  // Whether the locks of a folder's file system are seen by everyone who can reach it.
  std::function<bool(const std::string& folder)> locks_reach_all = local_locks;
  std::function<std::uint64_t(const std::string& folder)> device = device_of;  // RunOwner::device

  static bool local_locks(const std::string& folder);
  static std::uint64_t device_of(const std::string& folder);
};

enum class StoreCondition : std::uint8_t {
  kInUse,      // its run is alive; also while somebody else just looks at it
  kLeftover,   // its run was killed: records may be half-written
  kElsewhere,  // as kLeftover, but of a run whose lock may not be seen here
  kUnclaimed,  // no store in it, and no owner.json that makes sense: taken, but not removed unasked
  kUnknown,    // cannot be read, or may be of use (check_is_scratch()): neither taken nor removed
};

// A run's folder, seen without its lock being ours.
struct FoundRun {
  std::string run;
  std::string path;       // the NVMe path
  std::string directory;  // folder_of(path, run)
  StoreCondition condition = StoreCondition::kUnknown;
  Status problem;  // why it is kUnknown
  std::optional<RunOwner> owner;
  std::uint64_t bytes = 0;  // of the files in it that may be read
};

class StoreDirectory;
using StoreDirectories = std::vector<std::unique_ptr<StoreDirectory>>;

class StoreDirectory {
 public:
  // Makes <path>/sluice-<run>, or takes over what a dead run of that name left, with its files;
  // then it holds the lock, and owner.json says whose it is. `queue` must outlive it.
  // kInvalidArgument for a run that is not 1 to 64 of [A-Za-z0-9._-] or begins with a dot;
  // kNotFound where `path` does not exist; kBusy names the run's owner, who holds the lock or may
  // be alive elsewhere (kElsewhere); kAlreadyExists where the folder is not ours; for one that is
  // kUnknown, the error that made it so. After other errors a folder without an owner may be left.
  static Result<std::unique_ptr<StoreDirectory>> take(aio::IoQueue& queue, const std::string& path,
                                                      const std::string& run,
                                                      const RunOptions& options = {});
  // The folders of one run on several paths, in their order: all are looked at before one is taken.
  static Result<StoreDirectories> take_all(aio::IoQueue& queue,
                                           const std::vector<std::string>& paths,
                                           const std::string& run, const RunOptions& options = {});
  // The lock of an existing folder, so that it may be looked at and removed; its owner.json
  // stays as it is. kNotFound; kBusy and kAlreadyExists as of take().
  static Result<std::unique_ptr<StoreDirectory>> hold(aio::IoQueue& queue, const std::string& path,
                                                      const std::string& run,
                                                      const RunOptions& options = {});
  // Releases the lock, leaves the files.
  ~StoreDirectory() = default;
  StoreDirectory(const StoreDirectory&) = delete;
  StoreDirectory& operator=(const StoreDirectory&) = delete;

  const std::string& path() const { return path_; }

  // What lies in it, its lock counting as free.
  Result<FoundRun> look(const RunOptions& options = {}) const;

  // Whose the folder was when it was taken: no one's, or a dead run's.
  const std::optional<RunOwner>& previous_owner() const { return previous_owner_; }

  // Removes the files, then the lock, then the folder, durably; no file in it may be open. Where it
  // holds a folder, which no run of ours makes, the error names it, and nothing is removed. After
  // other errors it may be repeated. A run that takes the name while the last, empty folder is
  // removed keeps it.
  Status remove_all();
  // The error of remove_all() about a folder in it.
  Status refuse_removal() const;

 private:
  StoreDirectory(aio::IoQueue& queue, std::string parent, std::string run,
                 std::unique_ptr<aio::FileLock> lock, std::optional<RunOwner> previous_owner);
  Status remove_files();

  aio::IoQueue& queue_;
  const std::string parent_;
  const std::string run_;
  const std::string path_;
  std::unique_ptr<aio::FileLock> lock_;  // empty: the lock's file was removed, the name is free
  const std::optional<RunOwner> previous_owner_;
};

// Every folder of a run under `path`, sorted by name; folders that disappear meanwhile are left
// out, and what cannot be looked into is kUnknown. kNotFound where `path` does not exist.
Result<std::vector<FoundRun>> find_runs(aio::IoQueue& queue, const std::string& path,
                                        const RunOptions& options = {});

}  // namespace sluice::swap
