// ResumePoint: where `sluice train --resume` continues, and what in the run's folder is in its way.
//
// A run continues from the newest checkpoint or from the named one. An unreadable checkpoint is
// never skipped in favour of an older one, and later checkpoints are set aside only if the user
// asks for it (run.later_checkpoints). Every refusal names the command that continues.
#pragma once

#include <functional>
#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

#include "aio/result.h"
#include "engine/checkpoint/checkpoint_entry.h"
#include "engine/checkpoint/checkpoint_state.h"
#include "engine/checkpoint/stored_records.h"
#include "engine/config/config.h"
#include "tools/session/run_folder.h"

namespace sluice::tools {

// The given command line with a different --resume ("" leaves its name out) and with `more`
// appended.
using ResumeCommand =
    std::function<std::string(const std::string& resume, const std::string& more)>;

struct ResumePoint {
  std::optional<engine::CheckpointEntry> checkpoint;  // nullopt: none, the run begins at step 0.
  bool own = true;  // the checkpoint, and metrics up to its step, are in the run's folder.
  // Checkpoints of the run's own folder that would be mistaken for newer ones.
  std::vector<engine::CheckpointEntry> in_the_way;
  engine::CheckpointState stored;                // contents of the checkpoint's manifest
  std::optional<engine::StoredRecords> records;  // set: its state on NVMe is in a store
  // The checkpoint's configuration, or why it is no longer valid. Unset if there is no checkpoint,
  // or if it was imported, so that no run is resumed.
  std::optional<Result<config::Config>> configuration;
};

// Looks for nothing if `run`'s resume is empty. Changes nothing.
Result<ResumePoint> find_resume_point(const RunFolder& folder, const config::Run& run,
                                      const ResumeCommand& command);

// The error of a checkpoint that could not be read; if it is damaged or of a newer version, with
// the command that continues from the previous one.
Error with_older_one(Error error, const RunFolder& folder,
                     const engine::CheckpointEntry& checkpoint, const ResumeCommand& command);

// Sets aside what is in the way, and writes the new places to `says`. Before anything is moved, and
// even if nothing is, calls `cut` with the path of the file for the metrics lines that the run
// leaves behind; empty: the usual path.
Status make_way(const RunFolder& folder, const ResumePoint& point, std::ostream& notices,
                const std::function<Status(const std::string& cut_path)>& cut);

}  // namespace sluice::tools
