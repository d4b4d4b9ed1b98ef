// The layout of the optimizer state of a run of elements, in memory and in a record's payload:
// tiles of 65,536 elements, and within a tile field after field.
//
//   form           state (a tile)                      the parameter, kept elsewhere
//   kSplit         lo 128K | m 256K | v 256K           hi (bf16), 2 B
//   kFp32AndFp16   master 256K | m 256K | v 256K       the fp16 copy, 2 B, only written
//   kFp32          m 256K | v 256K                     the fp32 master itself, 4 B
//
// bf16 moments take half of that: m 128K | v 128K.
//
// A tile is one core's piece of work and fits its cache. So checking, the optimizer's step and
// sealing follow each other in the cache (swap/record_work.h). A tile's bytes are one checksum
// chunk. The last tile may have fewer elements; its fields begin at multiples of 64 bytes, and its
// size is one too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "offload/adamw/adamw_arrays.h"
#include "offload/state_slice.h"

namespace sluice::offload {

inline constexpr std::uint64_t kTileElements = 65'536;

constexpr std::uint64_t tile_count(std::uint64_t elements) {
  return (elements + kTileElements - 1) / kTileElements;
}

// Bytes of a whole tile: the store's chunk_bytes.
constexpr std::uint64_t tile_bytes(StateForm form) {
  return kTileElements * static_cast<std::uint64_t>(state_bytes_per_element(form));
}
// Bytes of the state of `elements` elements, including the gaps of the last tile.
std::uint64_t state_bytes(StateForm form, std::uint64_t elements);

// Where the fields of one tile begin. Null: the form has no such field.
struct StateTile {
  std::uint16_t* lo = nullptr;
  float* master = nullptr;
  float* m = nullptr;
  float* v = nullptr;
  std::uint16_t* m16 = nullptr;
  std::uint16_t* v16 = nullptr;
};
// `tile` is the tile's first byte, aligned to 64; `elements` is its number of elements.
StateTile state_tile(StateForm form, std::byte* tile, std::uint64_t elements);

// Fields at arbitrary addresses. `master` is the place of lo or of the master, and is unused if the
// form has neither.
StateTile fields_at(StateForm form, std::byte* master, std::byte* m, std::byte* v);

// The kernel arguments for a tile, without the gradient: its fields, and the parameter that begins
// at `param`.
AdamwArrays tile_arrays(StateForm form, const StateTile& tile, void* param);

// Convert canonical state to and from the form's own arrays, exact to the bit with two exceptions.
// NaNs of a split master become the canonical NaN. Moments that bf16 cannot represent are rounded
// as in a step, by the keys in the arrays. pack_state() also makes the 16-bit parameter.
void pack_state(const StateSlice& from, const AdamwArrays& to);
void unpack_state(const AdamwArrays& from, const StateSlice& to);

// Makes only the form's parameters, as pack_state() does: for callers that only read them.
void pack_parameters(ParamForm form, std::span<const float> masters, void* parameters);

}  // namespace sluice::offload
