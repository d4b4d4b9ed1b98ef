// CheckpointEntry: what a folder with a checkpoint's name contains, according to its manifest and
// its file sizes.
//
// "Missing", "damaged", "from a newer version" and "unreadable" are different results. Only
// complete checkpoints, and leftovers of our own saves or removals, are ever removed.
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
  std::uint64_t bytes = 0;                    // of files and records, according to the manifest
  std::vector<std::string> store_paths = {};  // of the store that has part of the state; or none
  std::optional<double> loss;
  std::optional<double> validation_loss;
  // Left by an interrupted save or removal: its content is invalid, and it may be removed.
  bool leftover = false;
  // Ok: it is complete. Its manifest is valid, every file that loading needs exists at full
  // length, and so does the store that it names. Otherwise:
  //   kCorrupt       it is damaged or (still) incomplete
  //   kNewerVersion  a newer program wrote it
  //   kNotFound      it is a leftover
  //   other codes    it could not be read
  Status status;

  bool complete() const { return status.ok(); }
  // Whether it could be read. If not, its status does not tell what it is.
  bool known() const {
    return complete() || leftover || status.error().code() == ErrorCode::kCorrupt ||
           status.error().code() == ErrorCode::kNewerVersion;
  }
};

// Reads the manifest and file sizes, not the content. Returns nothing if there is no such folder.
// An empty folder is a leftover. A folder with a checkpoint's name and only foreign files is
// kCorrupt, because copies begin like that. A folder with another name may contain a checkpoint of
// any step; if it has only foreign files, the result is nothing.
std::optional<CheckpointEntry> look_at_checkpoint(aio::IoQueue& queue, const std::string& path);

// Checks that all files that loading needs exist at the manifest's lengths; otherwise kCorrupt. For
// a store that the manifest names, the errors are those of open_records().
Status check_stored_files(aio::IoQueue& queue, const CheckpointManifest& manifest,
                          const std::string& folder);

// Why it is not complete: its status, after a sentence that names the checkpoint.
Error why_not(const CheckpointEntry& entry);

}  // namespace sluice::engine
