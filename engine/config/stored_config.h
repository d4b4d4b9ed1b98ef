// The configuration that a run keeps: in DIR/config.json, and in each of its checkpoints.
//
// Relative paths of a run file, of a DeepSpeed file and of overrides are resolved against the
// working folder. What a run keeps has absolute paths, so that it means the same from any folder;
// but in DIR/config.json what lies below the run's folder is relative to it, so that it still means
// the same after the run was moved or copied. It has no run.dir: the run is where its config.json
// lies. Links are not followed, and ".." is not resolved.
#pragma once

#include <string>

#include "aio/result.h"
#include "engine/config/resolve.h"

namespace sluice::config {

// `working_folder`: absolute; empty where it is gone, and then a relative path is an error.
Result<Config> stored_config(const Config& config, const std::string& working_folder);

// As text, for a checkpoint: as numbers.
Result<std::string> stored_json(const Config& config, const std::string& working_folder);
// For DIR/config.json, where DIR is run.dir: with "auto" where it follows from the run's length.
Result<std::string> run_folder_json(const Resolved& resolved, const std::string& working_folder);

// DIR/config.json as a source, with its relative paths resolved against DIR; of a run of an earlier
// version, which has run.dir and paths as they were given, against the folder it was begun in.
Source in_run_folder(Source source, const std::string& folder);

// Back again, from a checkpoint. An error where an older program's contains what is refused today.
Result<Config> resolve_stored(const std::string& text);

}  // namespace sluice::config
