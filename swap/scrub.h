// scrub: reads every record of a store and checks it, without changing anything.
//
// Records are checked against their own headers. Each record is intact or not; scrub cannot tell
// whether the records belong together.
//
// Memory:  at most four images of the largest record.
// Threads: blocking; checks run on the executor's threads.
// Errors:  damage is a result of scrub(), not an error; kBusy, kNotFound and failures to read the
//          manifest are errors. A record that cannot be read counts as bad.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "aio/executor.h"
#include "aio/io_queue.h"
#include "aio/result.h"

namespace sluice::swap {

struct BadRecord {
  std::string name;
  std::string problem;  // a sentence
};

struct ScrubReport {
  std::uint64_t records = 0;
  std::uint64_t bytes = 0;          // read
  std::uint64_t never_written = 0;  // records without a header
  std::vector<BadRecord> bad;
};

using ScrubProgress = std::function<void(std::uint64_t done_bytes, std::uint64_t total_bytes)>;

Result<ScrubReport> scrub(aio::IoQueue& queue, aio::Executor& executor,
                          const std::vector<std::string>& paths, const std::string& run,
                          const ScrubProgress& on_progress = {});

}  // namespace sluice::swap
