// StoredRecords: the part of a checkpoint's state that stays in the records of the run's store on
// NVMe, in the generation that was frozen (swap/frozen_store.h). The manifest says which elements
// each record has, so a reader asks for parameters and elements, as with files.
//
// Threads: pure functions, except open_records(), which blocks.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "aio/io_queue.h"
#include "aio/result.h"
#include "engine/checkpoint/state_pieces.h"
#include "engine/weights/dtype.h"
#include "offload/element_types.h"
#include "swap/frozen_records.h"
#include "swap/frozen_store.h"

namespace sluice::engine {

struct StoredRecords {
  // A piece of a parameter in a record.
  struct Piece {
    StatePiece piece;
    std::uint64_t record_element = 0;  // the record's element at which it begins

    friend bool operator==(const Piece&, const Piece&) = default;
  };
  // A record of state (offload/state/state_tiles.h), and the record of the same elements'
  // parameters, which a state that has the master does not need.
  struct Part {
    swap::RecordId state = 0;
    std::optional<swap::RecordId> parameters = {};
    std::uint64_t elements = 0;  // of the record, including gaps between the pieces
    std::vector<Piece> pieces;   // ascending; none if the record has only gaps

    friend bool operator==(const Part&, const Part&) = default;
  };

  swap::FrozenStore store;
  offload::StateForm form;
  std::string placement;  // the run's own text, of which a checkpoint reads nothing
  std::vector<Part> parts;

  std::uint64_t total_bytes() const;  // of all records, headers included
  friend bool operator==(const StoredRecords& a, const StoredRecords& b) {
    return a.store == b.store && a.form.param == b.form.param && a.form.moments == b.form.moments &&
           a.placement == b.placement && a.parts == b.parts;
  }
};

// The pieces of a part as check_pieces() takes them.
StatePieces pieces_of(const StoredRecords::Part& part);

// Checks that every record of the store is in exactly one part, that parts have parameters where
// the form needs them, and that pieces do not overlap in their record. `moments`: the dtype of the
// checkpoint's moments. Whether the pieces cover the state is for check_pieces().
// kInvalidArgument: a sentence.
Status check_records(const StoredRecords& records, DType moments);

// "the store sluice-a on /nvme0 and /nvme1"
std::string store_name(const swap::FrozenStore& store);

// Opens the store for reading, whether or not its run is alive. Checks that its records have the
// sizes that the manifest implies. A store that is not there, as with a drive that is not mounted,
// is kIo. One that is damaged, or is another store, is kCorrupt.
Result<std::unique_ptr<swap::FrozenRecords>> open_records(aio::IoQueue& queue,
                                                          const StoredRecords& records);

}  // namespace sluice::engine
