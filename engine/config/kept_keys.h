// What a resumed run keeps of its configuration. Unless the new configuration sets them, it keeps
// the parameters that weight decay applies to, the number of checkpoints, and the order of gradient
// sums. It always keeps the origin of its weights.
//
// `stored` is the configuration in the checkpoint. It is not resolved for this, since that of an
// older program may contain what is refused today. Each function returns a sentence if the outcome
// differs from what a new run would do, and an empty text otherwise.
//
// Threads: any.
#pragma once

#include <cstdint>
#include <string>

#include "engine/config/resolve.h"

namespace sluice::config {

// optimizer.params.decayed. A run from before this key decayed all parameters. Also reports a
// change by the new configuration.
std::string keep_decayed_parameters(const std::string& stored, Resolved& resolved);

// run.keep_last: resuming a run must not remove checkpoints that it was configured to keep.
std::string keep_number_of_checkpoints(const std::string& stored, Resolved& resolved);

// run.keep_best, for the same reason.
std::string keep_best_checkpoint(const std::string& stored, Resolved& resolved);

// run.checkpoint_in_place, for a run whose checkpoint is in its store.
std::string keep_checkpoint_in_place(Resolved& resolved);

// run.lanes and run.rounds, if they divide the current number of micro-batches in a step.
struct KeptLanes {
  std::int64_t lanes = 1;
  std::int64_t rounds = 1;
};
// Returns a sentence if the ranks cannot share the lanes.
std::string keep_lanes(const KeptLanes& had, Resolved& resolved);

// model.path and model.init_from, or recipe.lora.adapter for adapters: the initial weights of the
// run stay the same. (The adapters' base may have been moved.) `here`: the folder of relative paths
// in the new configuration.
std::string keep_origin(const std::string& stored, const std::string& here, Resolved& resolved);

inline constexpr const char* kDecayedKey = "optimizer.params.decayed";

}  // namespace sluice::config
