// What a run that continues from a checkpoint keeps of its configuration: where the new one does
// not say otherwise, what weight decay applies to, how many checkpoints stay and in which order
// gradients are added up; and in any case where its weights came from.
//
// `stored` is the configuration that the checkpoint holds. It is not resolved for this: an older
// program's may contain what is refused today. Each returns a sentence where the outcome is not
// what a new run would do; empty where there is nothing to say.
//
// Threads: any.
#pragma once

#include <cstdint>
#include <string>

#include "engine/config/resolve.h"

namespace sluice::config {

// optimizer.params.decayed. A run from before the key existed decayed all. Also reports where the
// new configuration changes it.
std::string keep_decayed_parameters(const std::string& stored, Resolved& resolved);

// run.keep_last: checkpoints that a run was told to keep are not removed because it is resumed.
std::string keep_number_of_checkpoints(const std::string& stored, Resolved& resolved);

// run.lanes and run.rounds, where they divide the step's micro-batches as it is now.
struct KeptLanes {
  std::int64_t lanes = 1;
  std::int64_t rounds = 1;
};
// A sentence where the ranks cannot share them.
std::string keep_lanes(const KeptLanes& had, Resolved& resolved);

// model.path and model.init_from, or of adapters recipe.lora.adapter: what the checkpoint's weights
// began with stays what it was. (The base beside adapters may have been moved.) `here`: the folder
// of relative paths in the new configuration.
std::string keep_origin(const std::string& stored, const std::string& here, Resolved& resolved);

inline constexpr const char* kDecayedKey = "optimizer.params.decayed";

}  // namespace sluice::config
