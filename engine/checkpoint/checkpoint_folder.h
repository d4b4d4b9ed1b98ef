// CheckpointFolder: all checkpoints of a run, DIR/checkpoints: which there are, and which are
// removed.
//
// Nothing is kept in memory, so what others add or remove is seen. The run's directory belongs to
// one process; that is not checked here. Folders and files with names other than a checkpoint's are
// never touched, nor is a checkpoint that cannot be read: see checkpoint_entry.h.
//
// Threads: one at a time.
// Errors:  name the path. A folder that cannot be searched is an error, not an empty one.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "aio/io_queue.h"
#include "aio/result.h"
#include "engine/checkpoint/checkpoint_entry.h"

namespace sluice::engine {

class CheckpointFolder {
 public:
  // `queue` must outlive it. The folder need not exist: then there are no checkpoints.
  CheckpointFolder(aio::IoQueue& queue, std::string folder);

  const std::string& path() const { return folder_; }
  std::string path_of(std::int64_t step) const;  // for CheckpointWriter::begin()

  // By step, the newest last. Looks at manifests and file sizes, not at content.
  Result<std::vector<CheckpointEntry>> list() const;
  // The one with the highest step that is not a leftover, if any, complete or not: an older one
  // should not be taken for the newest because the newest cannot be read.
  Result<std::optional<CheckpointEntry>> newest_entry() const;
  // The same, and why_not() where it is not complete.
  Result<std::optional<CheckpointEntry>> newest() const;
  // The complete one with the highest step below `step`.
  Result<std::optional<CheckpointEntry>> before(std::int64_t step) const;
  // All of later steps except leftovers, complete or not.
  Result<std::vector<CheckpointEntry>> later_than(std::int64_t step) const;
  // By its name, or by its step as in "12" or "step-12"; complete or not, but not a leftover.
  // kNotFound says which there are.
  Result<CheckpointEntry> find_entry(const std::string& name) const;
  // The same, and why_not() where it is not complete.
  Result<CheckpointEntry> find(const std::string& name) const;

  // The complete checkpoints that prune() would remove.
  Result<std::vector<CheckpointEntry>> beyond(int keep_last, std::int64_t up_to_step) const;
  // Settles replacements, finishes removals that failed, then removes the complete checkpoints up
  // to this step except the `keep_last` (at least 1) newest of them. Returns their names.
  Result<std::vector<std::string>> prune(
      int keep_last, std::int64_t up_to_step = std::numeric_limits<std::int64_t>::max());
  // Removes what interrupted saves and removals left, and settles replacements. Returns the names.
  // Not while a CheckpointWriter is at work here.
  Result<std::vector<std::string>> clean_leftovers();
  // Moves these, of a run that continues from step `step`, into the checkpoints of a new folder
  // beside them, which reads like a run's directory; returns its path. `prepare` gets the path
  // before anything is moved; where it fails, nothing is moved.
  using Prepare = std::function<Status(const std::string& aside)>;
  Result<std::string> set_aside(const std::vector<CheckpointEntry>& entries, std::int64_t step,
                                const Prepare& prepare = {});

 private:
  void finish_removals(const std::vector<std::string>& names);

  aio::IoQueue& queue_;
  const std::string folder_;
};

}  // namespace sluice::engine
