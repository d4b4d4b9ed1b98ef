// What a run that goes on from a checkpoint keeps of its weight decay: which parameters it applied
// to. Without LibTorch. Threads: any.
#pragma once

#include <string>

#include "engine/config/resolve.h"

namespace sluice::config {

// `stored`: the resolved configuration that the checkpoint holds. Where the new one does not give
// optimizer.params.decayed itself, `resolved.config` gets what the run had; one from before the key
// was there decayed all. Returns a sentence where that is not what a new run would do, or where the
// two differ; empty where there is nothing to say.
std::string keep_decayed_parameters(const std::string& stored, Resolved& resolved);

}  // namespace sluice::config
