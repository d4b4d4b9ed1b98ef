// Interprets a command line's DIR: a run's directory, the folder of one checkpoint, or RUN/best.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "aio/io_queue.h"
#include "aio/result.h"

namespace sluice::tools {

struct CheckpointArgument {
  std::string path;           // the checkpoint's folder
  std::string run_directory;  // empty: the folder is not in one
};

// `name`: --checkpoint, "step-000000012", "12" or "best"; empty takes the newest. If the newest
// cannot be read, the function fails rather than take an older one. Checks manifests and file
// sizes, not contents. Errors list the checkpoints that exist.
Result<CheckpointArgument> find_checkpoint(aio::IoQueue& queue, const std::string& directory,
                                           const std::string& name);

// DIR, OUT and --checkpoint of a command that writes a checkpoint elsewhere. The strings must stay
// valid until the command line has been parsed.
void add_copy_options(CLI::App& command, std::string& from, std::string& to,
                      std::string& checkpoint);

}  // namespace sluice::tools
