// verify_checkpoint: reads every byte of a checkpoint and checks it, without changing anything. For
// a checkpoint with state in a store, that includes the records.
//
// Memory:  a few chunks.
// Threads: blocking.
// Errors:  damage is part of the result, not an error; unreadable files count as damaged. kNotFound
//          if there is no such folder, kCancelled if on_progress returns false.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "aio/io_queue.h"
#include "aio/result.h"

namespace sluice::engine {

struct DamagedRange {
  std::string file;  // its name in the folder, or the name of a record in the store
  std::uint64_t begin_bytes = 0;
  std::uint64_t end_bytes = 0;  // both 0: the whole file
  std::string problem;          // a sentence that names the file or record
};

struct VerifyReport {
  std::int64_t step = -1;  // -1: the manifest is damaged
  std::uint64_t files = 0;
  std::uint64_t records = 0;
  std::uint64_t bytes = 0;  // read
  std::uint64_t chunks = 0;
  std::vector<DamagedRange> damaged;
  bool removed = false;  // it was removed meanwhile, as its run does, so that this is no damage
};

struct VerifyOptions {
  int chunks_ahead = 8;
  // Called after each chunk; false stops the check.
  std::function<bool(std::uint64_t done_bytes, std::uint64_t total_bytes)> on_progress;
};

Result<VerifyReport> verify_checkpoint(aio::IoQueue& queue, const std::string& folder,
                                       const VerifyOptions& options);

}  // namespace sluice::engine
