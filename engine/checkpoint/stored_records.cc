#include "engine/checkpoint/stored_records.h"

#include <algorithm>
#include <utility>

#include "offload/state/frozen_state.h"
#include "offload/state/state_tiles.h"
#include "swap/record_image.h"

namespace sluice::engine {
namespace {

using offload::ElementType;
using offload::has_parameter_records;
using offload::parameter_bytes;

constexpr int kPlaces = 2;  // of each record
constexpr std::uint64_t kMaxRecordElements = swap::kMaxChunks * offload::kTileElements;

Error invalid(std::string what) { return Error(ErrorCode::kInvalidArgument, std::move(what)); }

std::string name_of(const StoredRecords::Part& part) {
  return "record " + std::to_string(part.state) + " of its store";
}

std::uint64_t image_bytes(std::uint64_t payload_bytes) {
  return swap::RecordShape{.payload_bytes = payload_bytes}.image_bytes();
}

Status mark_used(swap::RecordId id, std::vector<bool>& used) {
  if (id >= used.size())
    return invalid("it names record " + std::to_string(id) + " of a store that has " +
                   std::to_string(used.size()));
  if (used[id]) return invalid("it names record " + std::to_string(id) + " of its store twice");
  used[id] = true;
  return {};
}

Status check_part(const StoredRecords::Part& part, bool has_parameters) {
  if (part.parameters.has_value() != has_parameters)
    return invalid(name_of(part) + (has_parameters ? " has no" : " has a") +
                   " record of parameters, against its form");
  if (part.elements == 0 || part.elements > kMaxRecordElements)
    return invalid(name_of(part) + " has " + std::to_string(part.elements) + " elements");
  std::uint64_t end = 0;
  for (const StoredRecords::Piece& one : part.pieces) {
    if (one.record_element < end || one.record_element > part.elements ||
        one.piece.elements > part.elements - one.record_element)
      return invalid("a piece in " + name_of(part) + " has " + std::to_string(one.piece.elements) +
                     " elements from " + std::to_string(one.record_element) + " on, where " +
                     std::to_string(end) + " to " + std::to_string(part.elements) + " are free");
    end = one.record_element + one.piece.elements;
  }
  return {};
}

Status check_payload(const swap::RecordSpec& record, std::uint64_t bytes) {
  if (record.payload_bytes == bytes) return {};
  return Error(ErrorCode::kCorrupt,
               "record " + swap::name_of(record) + " has " + std::to_string(record.payload_bytes) +
                   " bytes, but the checkpoint expects " + std::to_string(bytes));
}

Status check_layout(const swap::StoreLayout& layout, const StoredRecords& records) {
  if (layout.records().size() != records.store.records.size() ||
      layout.options().chunk_bytes != offload::tile_bytes(records.form))
    return Error(ErrorCode::kCorrupt, "its records are not those of the checkpoint");
  for (const StoredRecords::Part& part : records.parts) {
    SLUICE_RETURN_IF_ERROR(check_payload(layout.record(part.state),
                                         offload::state_bytes(records.form, part.elements)));
    if (part.parameters)
      SLUICE_RETURN_IF_ERROR(check_payload(layout.record(*part.parameters),
                                           parameter_bytes(records.form, part.elements)));
  }
  return {};
}

}  // namespace

std::uint64_t StoredRecords::total_bytes() const {
  std::uint64_t total = 0;
  for (const Part& part : parts) {
    total += image_bytes(offload::state_bytes(form, part.elements));
    if (part.parameters) total += image_bytes(parameter_bytes(form, part.elements));
  }
  return total;
}

StatePieces pieces_of(const StoredRecords::Part& part) {
  StatePieces pieces;
  for (const StoredRecords::Piece& one : part.pieces) pieces.push_back(one.piece);
  return pieces;
}

Status check_records(const StoredRecords& records, DType moments) {
  const swap::FrozenStore& store = records.store;
  if (store.paths.empty()) return invalid("its store is on no path");
  if ((records.form.moments == ElementType::kBf16) != (moments == DType::kBF16))
    return invalid("the moments in its store are not " + std::string(to_string(moments)));
  for (const swap::FrozenRecord& record : store.records) {
    if (record.place < 0 || record.place >= kPlaces)
      return invalid("a record of its store is in place " + std::to_string(record.place));
  }
  std::vector<bool> used(store.records.size());
  for (const StoredRecords::Part& part : records.parts) {
    SLUICE_RETURN_IF_ERROR(mark_used(part.state, used));
    if (part.parameters) SLUICE_RETURN_IF_ERROR(mark_used(*part.parameters, used));
    SLUICE_RETURN_IF_ERROR(check_part(part, has_parameter_records(records.form)));
  }
  if (used.empty() || std::find(used.begin(), used.end(), false) != used.end())
    return invalid("it does not say what is in every record of its store");
  return {};
}

std::string store_name(const swap::FrozenStore& store) {
  std::string text = "the store sluice-" + store.run + " on ";
  for (std::size_t i = 0; i < store.paths.size(); ++i)
    text.append(i == 0 ? "" : i + 1 == store.paths.size() ? " and " : ", ").append(store.paths[i]);
  return text;
}

Result<std::unique_ptr<swap::FrozenRecords>> open_records(aio::IoQueue& queue,
                                                          const StoredRecords& records) {
  const std::string where = "the checkpoint's state is in " + store_name(records.store);
  auto opened = swap::FrozenRecords::open(queue, records.store);
  if (!opened.ok() && opened.error().code() == ErrorCode::kNotFound)
    return Error(ErrorCode::kIo, where + ", which is not there (" + opened.error().message() +
                                     "): mount its drive, or remove the checkpoint if "
                                     "the store is gone");
  if (!opened.ok()) return std::move(opened).error().with_context(where);
  if (Status fits = check_layout((*opened)->layout(), records); !fits.ok())
    return std::move(fits).error().with_context(where);
  return opened;
}

}  // namespace sluice::engine
