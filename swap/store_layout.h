// StoreLayout: the records of a store and their places, fixed when the store is created.
//
// Records are stored one after another in the given order, each at a multiple of 4096 bytes of one
// address range, which is striped over the paths. With two places the second ones follow all first
// ones.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "aio/result.h"
#include "swap/record_image.h"

namespace sluice::swap {

using RecordId = std::uint32_t;  // its index in the given order

struct RecordSpec {
  std::string parameter;            // the unit or parameter that the state belongs to
  std::uint64_t first_element = 0;  // in the parameter's flat order
  std::uint64_t elements = 0;
  std::uint64_t payload_bytes = 0;
};

// "h.3/adamw[0..1048576)": the record's name in messages.
std::string name_of(const RecordSpec& spec);

struct StoreLayoutOptions {
  std::uint64_t store_id = 0;  // random: distinguishes this store's bytes from an earlier one's
  std::string run;
  std::vector<std::string> paths;
  std::vector<int> weights;  // empty: equal
  std::uint64_t stripe_bytes = 1 << 20;
  std::uint64_t chunk_bytes = 1 << 20;  // per checksum; a multiple of 64, at most 16 MiB
  int places = 1;                       // of each record: 1 or 2
};

class StoreLayout {
 public:
  // kInvalidArgument names what is wrong: no record, an empty one, one with more chunks than a
  // header holds, two with the same parameter and first element.
  static Result<StoreLayout> create(StoreLayoutOptions options, std::vector<RecordSpec> records);

  const StoreLayoutOptions& options() const { return options_; }
  std::span<const RecordSpec> records() const { return records_; }
  const RecordSpec& record(RecordId id) const { return records_[id]; }
  RecordShape shape(RecordId id) const;
  std::uint64_t offset_bytes(RecordId id, int place = 0) const {
    return static_cast<std::uint64_t>(place) * place_bytes_ + offsets_[id];
  }
  std::uint64_t total_bytes() const {
    return static_cast<std::uint64_t>(options_.places) * place_bytes_;
  }
  std::uint64_t largest_image_bytes() const { return largest_image_bytes_; }

 private:
  StoreLayout() = default;

  StoreLayoutOptions options_;
  std::vector<RecordSpec> records_;
  std::vector<std::uint64_t> offsets_;
  std::uint64_t place_bytes_ = 0;  // of all records, once
  std::uint64_t largest_image_bytes_ = 0;
};

}  // namespace sluice::swap
