// A store with two places for each record can freeze one generation of all its records: a
// checkpoint in place. Later generations are written to the other places. A checkpoint's manifest
// names the frozen one by these values (engine/checkpoint/stored_records.h).
//
// FrozenMark is `frozen.json` in the store's folder on every path. A store with it may be of use
// after its run, so that nothing removes it unasked.
//
// Threads: values; RecordPlaces under its owner's lock. The functions block.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "aio/io_queue.h"
#include "aio/result.h"
#include "swap/store_layout.h"

namespace sluice::swap {

struct FrozenRecord {
  std::uint64_t generation = 0;
  int place = 0;

  friend bool operator==(const FrozenRecord&, const FrozenRecord&) = default;
};

struct FrozenStore {
  std::string run;                 // of its folder, sluice-<run>
  std::vector<std::string> paths;  // in the layout's order
  std::uint64_t store_id = 0;
  std::vector<FrozenRecord> records;  // by RecordId

  friend bool operator==(const FrozenStore&, const FrozenStore&) = default;
};

struct FrozenMark {
  std::string checkpoint;  // the folder of the first checkpoint that was to name the store
  bool named = false;      // a manifest has named it; false: perhaps none ever did
  // How often a process continued in the store. Each writes generations of its own, so that what a
  // killed one wrote is never taken for what a later one did.
  std::uint64_t openings = 0;

  friend bool operator==(const FrozenMark&, const FrozenMark&) = default;
};

// Durable and atomic. `folder`: the store's on one path.
Status write_frozen_mark(aio::IoQueue& queue, const std::string& folder, const FrozenMark& mark);
// Empty: there is none. kCorrupt: it is damaged.
Result<std::optional<FrozenMark>> read_frozen_mark(aio::IoQueue& queue, const std::string& folder);

// A record is written in place, unless its newest place is frozen: then to the other one. freeze()
// begins to name a generation. Until keep() or drop() both it and the one frozen before are
// protected, so nothing may be written.
class RecordPlaces {
 public:
  // No record was written. `places`: 1 or 2; with 1 nothing can be frozen.
  RecordPlaces(std::size_t records, int places) : places_(places), records_(records) {}
  // All records are those of the frozen generation.
  explicit RecordPlaces(std::span<const FrozenRecord> frozen);

  int newest(RecordId id) const { return records_[id].newest; }
  bool can_freeze() const { return places_ == 2; }
  bool may_write() const { return !naming_; }
  bool has_frozen() const { return has_frozen_; }
  // The place to write to, which becomes the newest.
  int write(RecordId id);

  void freeze();
  void keep();  // the generation of freeze() replaces the one before
  void drop();  // the one before stays

 private:
  struct Record {
    std::int8_t newest = 0;
    std::int8_t frozen = kNone;
  };
  static constexpr std::int8_t kNone = -1;

  int places_;
  bool naming_ = false;
  bool has_frozen_ = false;
  std::vector<Record> records_;
};

}  // namespace sluice::swap
