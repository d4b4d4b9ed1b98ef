// What `sluice train` says of its schedule before the first step: how many steps run.epochs are,
// where the schedule ends before the run does, and what becomes of it where a run goes on.
#pragma once

#include <optional>

#include "aio/result.h"
#include "engine/checkpoint/checkpoint_folder.h"
#include "engine/config/resolve.h"
#include "tools/cli/run_folder.h"

namespace sluice::tools {

// On standard error. `from`: the checkpoint that the run goes on from, if it does.
// kInvalidArgument where what is left of the schedule would move no weight.
Status tell_schedule(const config::Resolved& resolved, const RunFolder& folder,
                     const std::optional<engine::CheckpointEntry>& from);

}  // namespace sluice::tools
