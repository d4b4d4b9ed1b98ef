// SentUnit: a unit's trained parameters in 8 bits, as ranks send them when a unit is gathered. This
// is qwZ (Wang et al., "ZeRO++: Extremely Efficient Collective Communication for Giant Model
// Training", 2023, section 3.1). Matrices have the codes and scales of
// BlockCodec::kInt8; vectors (norms, biases) are sent in the compute type.
//
// A group is 128 consecutive elements of the unit's flat order, and shards consist of whole groups.
// So what a value is rounded to depends on its group alone, and not on the number of ranks. All
// ranks compute with decoded values, those of their own shard included.
//
// A group with a number that is not finite, or that is too large for a finite scale, is decoded to
// NaNs, so that the loss shows it.
//
// Layout of a piece, which is one rank's part of the bytes: the codes of its matrices, their
// scales (fp32), its vectors. All pieces have the size of the largest.
//
// Threads: pure functions.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "aio/units.h"
#include "offload/codec_tables.h"
#include "offload/element_types.h"
#include "offload/unit_shards.h"

namespace sluice::offload {

inline constexpr std::uint64_t kSentGroup = row_of(BlockCodec::kInt8).block;
static_assert(kShardAlignment % kSentGroup == 0);

struct SentUnit {
  std::uint64_t elements = 0;  // of the unit; whole groups, like the next
  std::uint64_t encoded = 0;   // the first elements, which are sent in 8 bits
  int world = 1;
  ParamForm form = ParamForm::kSplit;

  static constexpr std::uint64_t kAligned = 16;  // bytes: vectors, and pieces

  struct Piece {
    std::uint64_t first = 0;  // in the unit
    std::uint64_t encoded = 0;
    std::uint64_t plain = 0;  // elements after those

    std::uint64_t scales_offset() const { return encoded; }
    std::uint64_t plain_offset() const {
      return align_up(encoded + encoded / kSentGroup * sizeof(float), kAligned);
    }
  };
  std::uint64_t width() const { return element_bytes(compute_type(form)); }
  std::uint64_t piece_elements() const { return shard_piece_elements(elements, world); }
  Piece piece(int rank) const {
    const UnitShard shard = shard_of(elements, {.rank = rank, .world = world});
    const std::uint64_t in_bytes = std::clamp(encoded, shard.first_element, shard.end());
    return {.first = shard.first_element,
            .encoded = in_bytes - shard.first_element,
            .plain = shard.end() - in_bytes};
  }
  std::uint64_t piece_bytes() const {
    std::uint64_t most = 0;
    for (int rank = 0; rank < world; ++rank) {
      const Piece it = piece(rank);
      most = std::max(most, it.plain_offset() + it.plain * width());
    }
    return align_up(most, kAligned);
  }
  std::uint64_t bytes() const { return piece_bytes() * static_cast<std::uint64_t>(world); }
  std::uint64_t groups() const { return elements / kSentGroup; }
};

// Groups [first, end) of rank `rank`'s piece. `shard` is the rank's parameters in the compute type,
// `to` the beginning of its piece.
void encode_groups(const SentUnit& unit, int rank, std::span<const std::byte> shard,
                   std::uint64_t first, std::uint64_t end, std::byte* to);
// Groups [first, end) of the unit, from all pieces. `to` is the beginning of the unit in the
// compute type.
void decode_groups(const SentUnit& unit, const std::byte* pieces, std::uint64_t first,
                   std::uint64_t end, std::byte* to);

}  // namespace sluice::offload
