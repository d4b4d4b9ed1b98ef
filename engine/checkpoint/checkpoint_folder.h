// CheckpointFolder: all checkpoints of a run, DIR/checkpoints: which there are, and which go.
//
// Nothing is kept in memory, so what others add or remove is seen. The run's directory belongs to
// one process; that is not checked here. Folders and files with other names than a checkpoint's are
// never touched.
//
// Threads: one at a time. Errors: name the path.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "aio/io_queue.h"
#include "aio/result.h"
#include "engine/checkpoint/checkpoint_manifest.h"

namespace sluice::engine {

struct CheckpointEntry {
  std::string name;  // "step-000000012"
  std::string path;
  std::int64_t step = 0;
  std::uint64_t bytes = 0;  // of the files, as the manifest has them
  std::optional<double> loss;
  std::optional<double> validation_loss;
  bool has_manifest = false;  // else a save that was not finished, or a removal
  // Ok: it is complete, so its manifest is sound and every file that loading needs is there in full
  // length. Else why not; kNotFound and kCorrupt are facts about it, other codes say that it could
  // not be looked at.
  Status status;

  bool complete() const { return status.ok(); }
};

class CheckpointFolder {
 public:
  // `queue` must outlive it. The folder need not be there: then there are no checkpoints.
  CheckpointFolder(aio::IoQueue& queue, std::string folder);

  const std::string& path() const { return folder_; }
  std::string path_of(std::int64_t step) const;  // for CheckpointWriter::begin()

  // By step, the newest last. Looks at manifests and file sizes, not at content.
  Result<std::vector<CheckpointEntry>> list() const;
  // The complete one with the highest step, if there is one. An error where a later one could not
  // be looked at: an older one should not be taken for the newest because a drive did not answer.
  Result<std::optional<CheckpointEntry>> newest() const;
  // By its name, or by its step as in "12". kNotFound says which there are; kCorrupt why it is not
  // complete.
  Result<CheckpointEntry> find(const std::string& name) const;

  // Removes complete checkpoints but the `keep_last` (at least 1) newest; their names.
  Result<std::vector<std::string>> prune(int keep_last);
  // Removes what saves and removals that were cut short left, and settles replacements; the names.
  // Not while a CheckpointWriter is at work here.
  Result<std::vector<std::string>> clean_leftovers();

 private:
  CheckpointEntry entry_of(const std::string& name) const;
  Status check_files(const CheckpointManifest& manifest, const std::string& path) const;

  aio::IoQueue& queue_;
  const std::string folder_;
};

}  // namespace sluice::engine
