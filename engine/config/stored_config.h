// The configuration that a run keeps: in DIR/config.json, and in each of its checkpoints.
//
// Relative paths of a run file, of a DeepSpeed file and of overrides are resolved against the
// working folder. What a run keeps has absolute paths, so that it means the same from any folder,
// and after the run was moved or copied. It has no run.dir: the run is where its config.json lies.
#pragma once

#include <string>

#include "engine/config/config.h"

namespace sluice::config {

// `working_folder`: absolute; empty leaves paths as they are.
std::string stored_json(const Config& config, const std::string& working_folder);

}  // namespace sluice::config
