// How the optimizer state of a run of elements lies in memory and in a record's payload: in tiles
// of 65,536 elements, and within a tile one field behind the other.
//
//   form           state (a tile)                      the parameter, kept elsewhere
//   kSplit         lo 128K | m 256K | v 256K           hi (bf16), 2 B
//   kFp32AndFp16   master 256K | m 256K | v 256K       the fp16 copy, 2 B, only written
//   kFp32          m 256K | v 256K                     the fp32 master itself, 4 B
//
// A tile is a core's worth of work that fits its cache, so that checking, the optimizer's step and
// sealing follow each other there (swap/record_work.h); its bytes are one checksum's chunk. The
// last tile may have fewer elements; its fields then begin at multiples of 64 bytes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "offload/adamw_arrays.h"

namespace sluice::offload {

inline constexpr std::uint64_t kTileElements = 65'536;

constexpr int state_bytes_per_element(ParamForm form) {
  return form == ParamForm::kSplit ? 10 : form == ParamForm::kFp32 ? 8 : 12;
}
constexpr int param_bytes_per_element(ParamForm form) { return form == ParamForm::kFp32 ? 4 : 2; }

// Of a whole tile: the store's chunk_bytes.
constexpr std::uint64_t tile_bytes(ParamForm form) {
  return kTileElements * static_cast<std::uint64_t>(state_bytes_per_element(form));
}
// Of the state of `elements` elements, the gaps of the last tile included.
std::uint64_t state_bytes(ParamForm form, std::uint64_t elements);

// Where the fields of one tile begin. Null: the form has no such field.
struct StateTile {
  std::uint16_t* lo = nullptr;
  float* master = nullptr;
  float* m = nullptr;
  float* v = nullptr;
};
// `tile` is the tile's first byte, aligned to 64; `elements` how many it has.
StateTile state_tile(ParamForm form, std::byte* tile, std::uint64_t elements);

}  // namespace sluice::offload
