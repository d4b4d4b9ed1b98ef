// What a command line's DIR means: a run's directory, or the folder of one checkpoint.
#pragma once

#include <string>

#include "aio/io_queue.h"
#include "aio/result.h"

namespace sluice::tools {

struct CheckpointArgument {
  std::string path;           // the checkpoint's folder
  std::string run_directory;  // empty: the folder does not lie in one
};

// `name`: --checkpoint, "step-000000012" or "12"; empty takes the newest, and an older one is not
// taken instead because the newest cannot be read. Looks at manifests and file sizes, not at
// content. Errors say what there is instead.
Result<CheckpointArgument> find_checkpoint(aio::IoQueue& queue, const std::string& directory,
                                           const std::string& name);

}  // namespace sluice::tools
