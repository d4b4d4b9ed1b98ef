// The configuration that a run keeps: in DIR/config.json, and in each of its checkpoints.
//
// Relative paths of a run file, of a DeepSpeed file and of overrides are resolved against the
// working folder. What a run keeps has absolute paths, so that it means the same from any folder,
// and after the run was moved or copied. It has no run.dir: the run is where its config.json lies.
#pragma once

#include <string>

#include "aio/result.h"
#include "engine/config/resolve.h"

namespace sluice::config {

// `working_folder`: absolute; empty leaves paths as they are.
Config stored_config(const Config& config, const std::string& working_folder);

// As text: in numbers, and (of a Resolved) with "auto" where it follows from the run's length.
std::string stored_json(const Config& config, const std::string& working_folder);
std::string stored_json(const Resolved& resolved, const std::string& working_folder);

// Back again, from a checkpoint. An error where an older program's has what is refused today.
Result<Config> resolve_stored(const std::string& text);

}  // namespace sluice::config
