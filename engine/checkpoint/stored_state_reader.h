// StoredStateReader: reads the state that a checkpoint has in the records of a frozen store.
//
// Every chunk is checked before a byte of it is used. A tile of state is read together with its
// parameters, converted to the canonical form, and kept. So requests for less than a tile, and for
// one field after another, read it once. Requests in ascending order are one pass over the store,
// with chunks read ahead.
//
// Memory:  a tile of state, a chunk of parameters and the canonical tile, at most 2.25 MiB; and
//          that of FrozenRecords.
// Threads: one at a time. `queue` and `records` must outlive this.
// Errors:  those of open_records(). kCorrupt names the record: it is damaged, or its run has saved
//          a newer checkpoint meanwhile and updated the record.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "aio/io_queue.h"
#include "aio/page_memory.h"
#include "engine/checkpoint/stored_records.h"
#include "offload/state_slice.h"

namespace sluice::engine {

class StoredStateReader {
 public:
  // Values of every field in kStateFields' order; empty: not wanted. The others have equal lengths.
  using Fields = std::array<std::span<float>, offload::kStateFields.size()>;

  static Result<std::unique_ptr<StoredStateReader>> open(aio::IoQueue& queue,
                                                         const StoredRecords& records);

  // Reads the record elements from `first_element` on of one part; they must be in the record.
  Status read(std::size_t part, std::uint64_t first_element, const Fields& to);

 private:
  struct Place {  // of a tile or a chunk
    std::uint64_t record = 0;
    std::uint64_t index = 0;

    friend bool operator==(const Place&, const Place&) = default;
  };

  StoredStateReader(const StoredRecords& records, std::unique_ptr<swap::FrozenRecords> store);
  Status read_chunk(swap::RecordId record, std::uint64_t chunk, std::span<std::byte> to);
  Result<std::byte*> parameters_of(swap::RecordId record, std::uint64_t tile);
  Status load(std::size_t part, std::uint64_t tile);

  const StoredRecords& records_;
  const std::unique_ptr<swap::FrozenRecords> store_;
  aio::PageMemory memory_;  // a chunk of state, then one of parameters
  std::vector<float> canonical_;
  std::optional<Place> tile_;              // in canonical_
  std::optional<Place> parameters_chunk_;  // in memory_
};

}  // namespace sluice::engine
