// StoreDirectory: one run's own folder under an NVMe path, <path>/sluice-<run>, held by a lock
// while the run lives.
//
// The lock (<folder>/lock) ends with the process, however it dies; the files stay. So a killed run
// leaves a folder with files but without a lock. Folders named sluice-* that contain neither `lock`
// nor owner.json do not belong to Sluice and are never touched. After a power loss at any moment,
// Sluice's folders are still recognisable, empty or gone.
//
// A free lock proves that the folder's owner ended only if this process would see the owner's lock
// (sees_lock_of()). That is so for a run of this machine on a local drive. Folders of other owners
// are refused, and so are unreadable ones. Taking and removing a folder use the same
// classification: StoreCondition. A refused folder is left unchanged, byte for byte.
//
// Threads: take() and find_runs() from any thread and process at once; a StoreDirectory from one
//          thread at a time.
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
#include "swap/store_manifest.h"

namespace sluice::swap {

// Who takes or inspects a folder, and how long to wait for its lock.
struct RunOptions {
  RunOwner self = this_process();  // its device is determined for each folder
  int lock_wait_ms = 1000;  // find_runs() and remove_all() of other processes hold locks briefly
  // Whether every process that can reach a folder sees the locks of its file system.
  std::function<bool(const std::string& folder)> locks_reach_all = local_locks;
  std::function<std::uint64_t(const std::string& folder)> device = device_of;  // RunOwner::device
  bool adopts = false;  // the caller knows what is in the store: it may be more than scratch

  static bool local_locks(const std::string& folder);
  static std::uint64_t device_of(const std::string& folder);
};

enum class StoreCondition : std::uint8_t {
  kInUse,      // its run is alive; also while another process inspects it
  kLeftover,   // its run was killed: records may be half-written
  kElsewhere,  // like kLeftover, but the lock of its run might not be visible here
  kUnclaimed,  // no store and no valid owner.json: may be taken, but is only removed on request
  kUnknown,    // unreadable, or possibly useful (check_is_scratch()): neither taken nor removed
};

// A run's folder, inspected without holding its lock.
struct FoundRun {
  std::string run;
  std::string path;       // the NVMe path
  std::string directory;  // folder_of(path, run)
  StoreCondition condition = StoreCondition::kUnknown;
  Status problem;  // the reason for kUnknown
  std::optional<RunOwner> owner;
  std::uint64_t bytes = 0;  // size of its readable files
};

class StoreDirectory;
using StoreDirectories = std::vector<std::unique_ptr<StoreDirectory>>;

class StoreDirectory {
 public:
  // Creates <path>/sluice-<run>, or takes over the folder and files of a dead run of that name.
  // Then it holds the lock, and owner.json names this process. `queue` must outlive it.
  //
  // Returns kInvalidArgument if `run` is not 1 to 64 characters of [A-Za-z0-9._-], or begins with a
  // dot. Returns kNotFound if `path` does not exist, and kAlreadyExists if the folder does not
  // belong to Sluice. Returns kBusy with the run's owner, which holds the lock or may be alive
  // elsewhere (kElsewhere). A kUnknown folder returns the error that made it so. Other errors may
  // leave a folder without an owner.
  static Result<std::unique_ptr<StoreDirectory>> take(aio::IoQueue& queue, const std::string& path,
                                                      const std::string& run,
                                                      const RunOptions& options = {});
  // Takes the folders of one run on several paths, in their order. All are inspected before any is
  // taken.
  static Result<StoreDirectories> take_all(aio::IoQueue& queue,
                                           const std::vector<std::string>& paths,
                                           const std::string& run, const RunOptions& options = {});
  // Takes the lock of an existing folder, so that it may be inspected and removed; its owner.json
  // stays unchanged. Errors: kNotFound; kBusy and kAlreadyExists as in take().
  static Result<std::unique_ptr<StoreDirectory>> hold(aio::IoQueue& queue, const std::string& path,
                                                      const std::string& run,
                                                      const RunOptions& options = {});
  // Releases the lock and leaves the files.
  ~StoreDirectory() = default;
  StoreDirectory(const StoreDirectory&) = delete;
  StoreDirectory& operator=(const StoreDirectory&) = delete;

  const std::string& path() const { return path_; }

  // Describes its contents as if the lock were free.
  Result<FoundRun> look(const RunOptions& options = {}) const;

  // The folder's owner when it was taken: empty, or a dead run.
  const std::optional<RunOwner>& previous_owner() const { return previous_owner_; }

  // Removes the files, then the lock, then the folder, durably; no file in it may be open. If it
  // contains a folder, which Sluice never creates, the error names that folder and nothing is
  // removed. After other errors it may be called again. If another run takes the name while the
  // empty folder is being removed, that run keeps the folder.
  Status remove_all();
  // The error of remove_all() about a contained folder.
  Status refuse_removal() const;

 private:
  StoreDirectory(aio::IoQueue& queue, std::string parent, std::string run,
                 std::unique_ptr<aio::FileLock> lock, std::optional<RunOwner> previous_owner);
  Status remove_files();

  aio::IoQueue& queue_;
  const std::string parent_;
  const std::string run_;
  const std::string path_;
  std::unique_ptr<aio::FileLock> lock_;  // empty: the lock file was removed, so the name is free
  const std::optional<RunOwner> previous_owner_;
};

// Every run's folder under `path`, sorted by name. Folders that disappear meanwhile are left out,
// and unreadable ones are kUnknown. kNotFound: `path` does not exist.
Result<std::vector<FoundRun>> find_runs(aio::IoQueue& queue, const std::string& path,
                                        const RunOptions& options = {});

}  // namespace sluice::swap
