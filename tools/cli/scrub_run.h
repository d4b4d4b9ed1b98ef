// The part of `sluice scrub` that reads a run's checkpoints.
#pragma once

#include <string>

#include "aio/io_queue.h"
#include "aio/result.h"

namespace sluice::tools {

// Whether `path` is a run's directory: it holds checkpoints.
Result<bool> is_run_folder(aio::IoQueue& queue, const std::string& path);

// Reads every byte of every checkpoint in it and prints what is damaged or cannot be checked.
// Returns whether everything is sound.
Result<bool> scrub_run(aio::IoQueue& queue, const std::string& directory);

}  // namespace sluice::tools
