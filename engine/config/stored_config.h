// The configuration that a run stores in DIR/config.json, and in each of its checkpoints.
//
// Relative paths in a run file, a DeepSpeed file and overrides are resolved against the working
// folder. A stored configuration has absolute paths, so that it means the same from any folder. In
// DIR/config.json, however, paths below the run's folder are relative to it, so that they stay
// valid after the run was moved or copied. It has no run.dir: the run's folder is that of its
// config.json. Links are not followed, and ".." is not resolved.
#pragma once

#include <string>

#include "aio/result.h"
#include "engine/config/resolve.h"

namespace sluice::config {

// `working_folder`: absolute. Empty if it no longer exists; a relative path is an error then.
Result<Config> stored_config(const Config& config, const std::string& working_folder);

// Text for a checkpoint; values that follow from the run's length are numbers.
Result<std::string> stored_json(const Config& config, const std::string& working_folder);
// For DIR/config.json, where DIR is run.dir; values that follow from the run's length are "auto".
Result<std::string> run_folder_json(const Resolved& resolved, const std::string& working_folder);

// DIR/config.json as a source, with its relative paths resolved against DIR. The file of a run of
// an earlier version has run.dir and the paths as given. They are resolved against the folder in
// which that run began.
Source in_run_folder(Source source, const std::string& folder);

// Resolves a checkpoint's configuration. An error if an older program's has keys that are refused
// today.
Result<Config> resolve_stored(const std::string& text);

}  // namespace sluice::config
