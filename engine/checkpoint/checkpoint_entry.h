// CheckpointEntry: what a folder with a checkpoint's name holds, as its manifest and the sizes of
// its files say.
//
// "Not there", "damaged", "of a newer version" and "cannot be read" are different answers. Only
// what is complete, or was left by one of our saves or removals, is ever removed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

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
  // Left by a save or a removal that was cut short: nothing in it counts, and it may be removed.
  bool leftover = false;
  // Ok: it is complete, so its manifest is sound and every file that loading needs is there at full
  // length. Else kCorrupt: damaged, or not all of it is there (yet); kNewerVersion; kNotFound for a
  // leftover; other codes: it could not be looked at.
  Status status;

  bool complete() const { return status.ok(); }
  // Whether it could be looked at: else its status does not say what it is.
  bool known() const {
    return complete() || leftover || status.error().code() == ErrorCode::kCorrupt ||
           status.error().code() == ErrorCode::kNewerVersion;
  }
};

// Looks at the manifest and at file sizes, not at content. Nothing where there is no such folder. A
// folder that is empty is a leftover; one with a checkpoint's name that holds only other things is
// kCorrupt, since that is how a copy begins. A folder whose name is not a checkpoint's may hold one
// of any step, and is nothing where it holds only other things.
std::optional<CheckpointEntry> look_at_checkpoint(aio::IoQueue& queue, const std::string& path);

// That all files that loading needs are there, as long as the manifest has them; kCorrupt.
Status check_stored_files(aio::IoQueue& queue, const CheckpointManifest& manifest,
                          const std::string& folder);

// Why it is not complete: its status, preceded by a sentence that names it.
Error why_not(const CheckpointEntry& entry);

}  // namespace sluice::engine
