// Work on a whole record, chunk by chunk, with all of an executor's threads. Each chunk is checked
// against its checksum, passed to the caller's function and resealed while it is in the core's
// cache. So a record crosses the memory bus once rather than three times.
//
// A chunk's work runs only if the header and that chunk are intact; after the first damaged chunk
// no more chunks are started. A record on which this failed must not be written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>

#include "aio/executor.h"
#include "aio/result.h"
#include "swap/record_image.h"

namespace sluice::swap {

struct RecordWork {
  // The generation that was read; empty: the data did not come from disk.
  std::optional<std::uint64_t> check;
  // The generation to write; empty: the record is only read.
  std::optional<std::uint64_t> seal;
  // Runs on any of the executor's threads, once per chunk; may be empty. Must not throw.
  std::function<void(int chunk, std::span<std::byte> data)> work;
};

// Returns RecordImage's kCorrupt errors; the caller adds the record's name.
Status work_on_record(aio::Executor& executor, RecordImage& image, const RecordWork& job);

}  // namespace sluice::swap
