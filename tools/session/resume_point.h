// ResumePoint: where `sluice train --resume` continues, and what in the run's folder is in its way.
//
// A run continues from the newest checkpoint or from the one that was named; what cannot be read is
// never skipped for an older one, and later checkpoints are left behind only as the user says
// (run.later_checkpoints). Every refusal names the command that continues.
#pragma once

#include <functional>
#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

#include "aio/result.h"
#include "engine/checkpoint/checkpoint_entry.h"
#include "engine/checkpoint/checkpoint_state.h"
#include "engine/config/config.h"
#include "tools/session/run_folder.h"

namespace sluice::tools {

// How the given command line reads with a different --resume ("" leaves its name out), and with
// more appended.
using ResumeCommand =
    std::function<std::string(const std::string& resume, const std::string& more)>;

struct ResumePoint {
  std::optional<engine::CheckpointEntry> checkpoint;  // nothing: the run begins at step 0
  bool own = true;  // the checkpoint is one of the run's folder; so are the metrics up to its step
  // From the run's own folder: they would be taken for newer ones.
  std::vector<engine::CheckpointEntry> in_the_way;
  engine::CheckpointState stored;  // what the checkpoint's manifest says
  // The configuration in it, or why it is no longer valid. Unset: there is no checkpoint, or it was
  // imported, so that no run is resumed.
  std::optional<Result<config::Config>> configuration;
};

// `run`: where its resume is empty nothing is looked for. Changes nothing.
Result<ResumePoint> find_resume_point(const RunFolder& folder, const config::Run& run,
                                      const ResumeCommand& command);

// The error of a checkpoint that turned out not to be readable; where it is damaged, or of a newer
// version, with the command that continues from the one before.
Error with_older_one(Error error, const RunFolder& folder,
                     const engine::CheckpointEntry& checkpoint, const ResumeCommand& command);

// Sets aside what is in the way, and tells `says` where. Before anything is moved, and even where
// nothing is, `cut` gets the file for the lines of metrics that the run leaves behind; empty: the
// usual place.
Status make_way(const RunFolder& folder, const ResumePoint& point, std::ostream& says,
                const std::function<Status(const std::string& cut_path)>& cut);

}  // namespace sluice::tools
