// copy_checkpoint: writes an ordinary checkpoint of one rank, with all of its state in files. The
// source is any checkpoint: of several ranks, with state in a run's store, or an ordinary one.
// Every chunk is checked, and every bit stays.
//
// The run of `from` may train. If it removes `from` meanwhile, because it saved newer checkpoints,
// the copy fails and says so.
//
// Memory:  that of CheckpointReader and CheckpointWriter, and 12 MiB.
// Threads: blocking.
// Errors:  those of CheckpointReader and CheckpointWriter. No file of a failed copy remains.
//          kNotFound: `from` was removed meanwhile.
//          kNoSpace: nothing was written.
//          kInvalidArgument, kAlreadyExists: `to` cannot become the copy's folder.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "aio/io_queue.h"
#include "aio/result.h"

namespace sluice::engine {

struct CopyCheckpoint {
  std::string from;  // a checkpoint's folder
  std::string to;    // a folder that does not exist or is empty
  // In elements of the state.
  std::function<void(std::uint64_t done, std::uint64_t total)> progress = {};
};
struct CopiedCheckpoint {
  std::int64_t step = 0;
  std::uint64_t bytes = 0;  // of the files
};
Result<CopiedCheckpoint> copy_checkpoint(aio::IoQueue& queue, const CopyCheckpoint& copy);

}  // namespace sluice::engine
