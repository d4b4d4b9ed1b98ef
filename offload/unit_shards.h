// Shards: which part of each unit a rank keeps, updates and stores ("ZeRO", Rajbhandari et al., SC
// 2020, section 5.3). All ranks have equal, consecutive pieces of a unit's flat order, so that a
// unit is gathered by one collective; what the pieces have more than the unit is padding behind its
// last element, which is no part of anything: with fewer elements than pieces the last ranks'
// shards are empty.
//
// Threads: a value.
#pragma once

#include <algorithm>
#include <cstdint>

#include "aio/units.h"

namespace sluice::offload {

// Which of how many ranks.
struct RankPart {
  int rank = 0;
  int world = 1;

  friend bool operator==(const RankPart&, const RankPart&) = default;
};

struct UnitShard {
  std::uint64_t first_element = 0;  // in the unit
  std::uint64_t elements = 0;

  std::uint64_t end() const { return first_element + elements; }
};

// As LibTorch aligns tensors, in any type: kernels are chosen by alignment.
inline constexpr std::uint64_t kShardAlignment = 128;  // elements

// What each rank has of a gathered unit, with the padding.
constexpr std::uint64_t shard_piece_elements(std::uint64_t unit_elements, int world) {
  const auto ranks = static_cast<std::uint64_t>(world);
  return ranks == 1 ? unit_elements
                    : align_up((unit_elements + ranks - 1) / ranks, kShardAlignment);
}
// Of a gathered unit: all pieces.
constexpr std::uint64_t gathered_elements(std::uint64_t unit_elements, int world) {
  return shard_piece_elements(unit_elements, world) * static_cast<std::uint64_t>(world);
}
constexpr UnitShard shard_of(std::uint64_t unit_elements, const RankPart& part) {
  const std::uint64_t piece = shard_piece_elements(unit_elements, part.world);
  const std::uint64_t begin =
      std::min(piece * static_cast<std::uint64_t>(part.rank), unit_elements);
  return {.first_element = begin, .elements = std::min(piece, unit_elements - begin)};
}

}  // namespace sluice::offload
