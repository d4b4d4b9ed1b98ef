// Work on a whole record, chunk by chunk, with all of an executor's threads: each chunk is checked
// against its checksum, handed to the caller's work and resealed in one go, while it is in the
// core's cache. So a record crosses the memory bus once rather than three times.
//
// A chunk's work runs only if the header and that chunk are intact; after the first damaged chunk
// no more are started. A record on which this failed must not be written.
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
  // The generation that was read; nothing: the data did not come from a disk.
  std::optional<std::uint64_t> check;
  // The generation to be written; nothing: the record is only looked at.
  std::optional<std::uint64_t> seal;
  // On any of the executor's threads, once per chunk; may be empty. Must not throw.
  std::function<void(int chunk, std::span<std::byte> data)> work;
};

// kCorrupt as from RecordImage; the caller adds the record's name.
Status work_on_record(aio::Executor& executor, RecordImage& image, const RecordWork& job);

}  // namespace sluice::swap
