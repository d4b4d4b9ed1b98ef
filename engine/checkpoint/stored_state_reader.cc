#include "engine/checkpoint/stored_state_reader.h"

#include <algorithm>
#include <utility>

#include "aio/check.h"
#include "offload/state/state_tiles.h"

namespace sluice::engine {

using offload::kStateFields;
using offload::kTileElements;

namespace {

std::uint64_t parameter_tile_bytes(offload::StateForm form) {
  return kTileElements * static_cast<std::uint64_t>(offload::param_bytes_per_element(form.param));
}

}  // namespace

Result<std::unique_ptr<StoredStateReader>> StoredStateReader::open(aio::IoQueue& queue,
                                                                   const StoredRecords& records) {
  SLUICE_ASSIGN_OR_RETURN(auto store, open_records(queue, records));
  std::unique_ptr<StoredStateReader> reader(new StoredStateReader(records, std::move(store)));
  SLUICE_ASSIGN_OR_RETURN(reader->memory_,
                          aio::PageMemory::map(2 * offload::tile_bytes(records.form), true));
  return reader;
}

StoredStateReader::StoredStateReader(const StoredRecords& records,
                                     std::unique_ptr<swap::FrozenRecords> store)
    : records_(records), store_(std::move(store)), canonical_(kStateFields.size() * kTileElements) {
  SLUICE_CHECK(offload::tile_bytes(records.form) % parameter_tile_bytes(records.form) == 0,
               "a chunk of parameters has those of whole tiles");
}

Status StoredStateReader::read_chunk(swap::RecordId record, std::uint64_t chunk,
                                     std::span<std::byte> to) {
  const std::uint64_t begin = chunk * to.size();
  const std::uint64_t payload = store_->layout().record(record).payload_bytes;
  return store_->read_chunk(record, static_cast<int>(chunk),
                            to.first(std::min<std::uint64_t>(to.size(), payload - begin)));
}

// The parameters of a tile, in memory_ until the next call.
Result<std::byte*> StoredStateReader::parameters_of(swap::RecordId record, std::uint64_t tile) {
  const std::uint64_t chunk_bytes = offload::tile_bytes(records_.form);
  const std::uint64_t begin = tile * parameter_tile_bytes(records_.form);
  const Place wanted{.record = record, .index = begin / chunk_bytes};
  const std::span<std::byte> memory = memory_.bytes().subspan(chunk_bytes, chunk_bytes);
  if (parameters_chunk_ != wanted) {
    parameters_chunk_.reset();
    SLUICE_RETURN_IF_ERROR(read_chunk(record, wanted.index, memory));
    parameters_chunk_ = wanted;
  }
  return memory.data() + begin % chunk_bytes;
}

Status StoredStateReader::load(std::size_t part, std::uint64_t tile) {
  const Place wanted{.record = part, .index = tile};
  if (tile_ == wanted) return {};
  tile_.reset();
  const StoredRecords::Part& from = records_.parts[part];
  const offload::StateForm form = records_.form;
  const std::span<std::byte> state = memory_.bytes().first(offload::tile_bytes(form));
  SLUICE_RETURN_IF_ERROR(read_chunk(from.state, tile, state));
  std::byte* parameters = nullptr;
  if (from.parameters) {
    SLUICE_ASSIGN_OR_RETURN(parameters, parameters_of(*from.parameters, tile));
  }
  const std::uint64_t elements = std::min(kTileElements, from.elements - tile * kTileElements);
  offload::unpack_state(
      offload::tile_arrays(form, offload::state_tile(form, state.data(), elements), parameters),
      offload::state_slice_in(canonical_, 0, elements, kTileElements));
  tile_ = wanted;
  return {};
}

Status StoredStateReader::read(std::size_t part, std::uint64_t first_element, const Fields& to) {
  std::uint64_t elements = 0;
  for (const std::span<float>& field : to) elements = std::max(elements, field.size());
  for (std::uint64_t done = 0; done < elements;) {
    const std::uint64_t at = first_element + done;
    const std::uint64_t in_tile = at % kTileElements;
    const std::uint64_t count = std::min(kTileElements - in_tile, elements - done);
    SLUICE_RETURN_IF_ERROR(load(part, at / kTileElements));
    for (std::size_t field = 0; field < to.size(); ++field) {
      if (to[field].empty()) continue;
      const float* const from = canonical_.data() + field * kTileElements + in_tile;
      std::copy_n(from, count, to[field].data() + done);
    }
    done += count;
  }
  return {};
}

}  // namespace sluice::engine
