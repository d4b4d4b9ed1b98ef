// RankReduction: what all ranks have added up of a unit's gradient, each for its own micro-batches,
// reduced to the shard of each ("ZeRO", Rajbhandari et al., SC 2020, stage 2), in the order of
// additions of a run (offload/sum_order.h): ranks own neighbouring lanes, as many each, and a power
// of two of them; so the roots of their trees are paired as the lanes' own tree pairs them. Pieces
// travel by all-to-all and are added here, never by a transport, whose order is its own.
//
// Memory:  a gathered unit's fp32 numbers, of the largest unit.
// Threads: the one that trains; all ranks reduce the same units in the same order.
// Errors:  as from Communicator.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "aio/result.h"
#include "engine/comm/communicator.h"
#include "engine/model/model_layout.h"
#include "offload/adamw/square_sum.h"
#include "offload/unit_shards.h"

namespace sluice::engine {

// Consecutive pieces of equal size: pairs of neighbours, level by level, an odd last one
// moving up unchanged. The sum is where the first piece was; the others are used up.
void add_pieces_by_tree(std::span<float> pieces, std::size_t count);

// What a run with several ranks needs of them. `link` is null for one rank.
struct RankLink {
  offload::RankPart part;
  Communicator* link = nullptr;

  bool is_alone() const { return part.world == 1; }
};

class RankReduction {
 public:
  // For units of up to `most_elements`.
  RankReduction(const RankLink& ranks, std::uint64_t most_elements);

  // `sum`: this rank's, of a whole unit, with the padding behind it: gathered_elements() of them.
  // The result is the sum of all ranks' in this one's shard; it stays until the next call.
  Result<std::span<float>> reduce(std::span<const float> sum);

 private:
  const RankLink ranks_;
  std::vector<float> received_;
};

// By unit: each rank's sums are of its shards; then all have those of whole units.
Status gather_square_sums(const RankLink& ranks, const ModelLayout& model,
                          std::span<offload::SquareSum* const> sums);

}  // namespace sluice::engine
