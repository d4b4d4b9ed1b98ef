// Shards: the part of each unit that a rank keeps, updates and stores ("ZeRO", Rajbhandari et al.,
// SC 2020, section 5.3). All ranks have equal, consecutive pieces of a unit's flat order, so that
// one collective gathers a unit. Padding after the unit's last element completes the pieces and is
// never used. So the last ranks' shards may be smaller than a piece, or empty.
//
// Threads: a value.
#pragma once

#include <algorithm>
#include <cstdint>

#include "aio/units.h"

namespace sluice::offload {

// A rank and the number of ranks.
struct RankPart {
  int rank = 0;
  int world = 1;
  // Above 1: hosts whose ranks, world / hosts neighbours, add up sums before hosts exchange them.
  int hosts = 1;

  int local_world() const { return world / hosts; }

  friend bool operator==(const RankPart&, const RankPart&) = default;
};

struct UnitShard {
  std::uint64_t first_element = 0;  // in the unit
  std::uint64_t elements = 0;

  std::uint64_t end() const { return first_element + elements; }
};

// The same alignment as LibTorch's tensors, for any type: kernels are chosen by alignment.
inline constexpr std::uint64_t kShardAlignment = 128;  // elements

// Elements of each rank's piece of a gathered unit, padding included.
constexpr std::uint64_t shard_piece_elements(std::uint64_t unit_elements, int world) {
  const auto ranks = static_cast<std::uint64_t>(world);
  return ranks == 1 ? unit_elements
                    : align_up((unit_elements + ranks - 1) / ranks, kShardAlignment);
}
// Elements of a gathered unit: all pieces together.
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
