// CheckpointFolder: lists and removes the checkpoints of a run, in DIR/checkpoints.
//
// Nothing is cached, so additions and removals by other programs are seen. The run's directory
// belongs to one process; this class does not check that. It never touches folders and files
// without a checkpoint's name, nor unreadable checkpoints (checkpoint_entry.h).
//
// Threads: one at a time.
// Errors:  name the path. A folder that cannot be searched is an error, not an empty one.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "aio/io_queue.h"
#include "aio/result.h"
#include "engine/checkpoint/checkpoint_entry.h"

namespace sluice::engine {

inline constexpr std::string_view kBestName = "best";  // names the best checkpoint of a run

// The complete checkpoint with the lowest validation loss, of equal ones the first; end() if none
// has one.
std::vector<CheckpointEntry>::const_iterator best_of(const std::vector<CheckpointEntry>& entries);

class CheckpointFolder {
 public:
  // `queue` must outlive this. The folder need not exist: then there are no checkpoints.
  CheckpointFolder(aio::IoQueue& queue, std::string folder);

  const std::string& path() const { return folder_; }
  std::string path_of(std::int64_t step) const;  // for CheckpointWriter::begin()

  // In ascending order of step. Reads manifests and file sizes, not the content.
  Result<std::vector<CheckpointEntry>> list() const;
  // The entry with the highest step, complete or not, except leftovers. An unreadable newest
  // checkpoint is returned too, so that no older one is taken for the newest.
  Result<std::optional<CheckpointEntry>> newest_entry() const;
  // The same, but an incomplete checkpoint is an error: why_not().
  Result<std::optional<CheckpointEntry>> newest() const;
  // The complete checkpoint with the highest step below `step`.
  Result<std::optional<CheckpointEntry>> before(std::int64_t step) const;
  // All checkpoints of later steps, complete or not, except leftovers.
  Result<std::vector<CheckpointEntry>> later_than(std::int64_t step) const;
  // The complete checkpoint with the lowest validation loss; of equal ones the first.
  Result<std::optional<CheckpointEntry>> best() const;
  // Finds a checkpoint by its name, or by its step as in "12" or "step-12"; complete or not, but
  // not a leftover. kBestName is best(). kNotFound lists the existing ones.
  Result<CheckpointEntry> find_entry(const std::string& name) const;
  // The same, but an incomplete checkpoint is an error: why_not().
  Result<CheckpointEntry> find(const std::string& name) const;

  // The complete checkpoints that prune() would remove.
  Result<std::vector<CheckpointEntry>> beyond(int keep_last, std::int64_t up_to_step,
                                              bool keep_best = false,
                                              bool only_in_stores = false) const;
  // Settles replacements and finishes removals that failed. Then it removes the complete
  // checkpoints up to `up_to_step`, except the newest `keep_last` (at least 1) of them, and with
  // `keep_best` the best of them. `only_in_stores`: only checkpoints with state in a store count,
  // and others stay. Returns their names.
  Result<std::vector<std::string>> prune(
      int keep_last, std::int64_t up_to_step = std::numeric_limits<std::int64_t>::max(),
      bool keep_best = false, bool only_in_stores = false);
  // Removes leftovers of interrupted saves and removals, and settles replacements. Returns the
  // names. Must not run while a CheckpointWriter writes here.
  Result<std::vector<std::string>> clean_leftovers();
  // For a run that continues from `step`: moves `entries` into a new folder here, which is laid out
  // like a run's directory, and returns the new folder's path. `prepare` gets that path before
  // anything is moved; if it fails, nothing is moved.
  using Prepare = std::function<Status(const std::string& aside)>;
  Result<std::string> set_aside(const std::vector<CheckpointEntry>& entries, std::int64_t step,
                                const Prepare& prepare = {});

 private:
  void finish_removals(const std::vector<std::string>& names);

  aio::IoQueue& queue_;
  const std::string folder_;
};

}  // namespace sluice::engine
