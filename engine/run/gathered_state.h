// GatheredState: the state of shards of all ranks, unit by unit, at rank 0: as one rank would have
// all of it.
//
// Memory:  12 bytes of each element of the largest unit, on every rank, and a shard's beside.
// Threads: one. All ranks gather the same units, in one order.
// Errors:  of the link; and where rank 0's visitor fails, it fails on every rank.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "aio/result.h"
#include "engine/model/model_layout.h"
#include "engine/step/rank_reduction.h"
#include "offload/state/state_tiles.h"

namespace sluice::engine {

class GatheredState {
 public:
  // A whole unit; on rank 0.
  using Visit = std::function<Status(const offload::StateRange& unit)>;
  // Both must outlive it.
  GatheredState(const ModelLayout& model, const RankLink& ranks, const Visit& visit);

  // This rank's, in ascending order.
  Status add(const offload::StateRange& range);
  // All of them were added.
  Status finish();

 private:
  static constexpr std::size_t kFields = 3;  // master, m, v
  std::uint64_t piece() const {
    return offload::shard_piece_elements(model_.layout(unit_).elements, ranks_.part.world);
  }
  Status gather_unit();

  const ModelLayout& model_;
  const RankLink ranks_;
  const Visit& visit_;
  int unit_ = 0;             // that is being added
  std::vector<float> mine_;  // field by field, of the unit's piece
  std::vector<float> all_;   // of each rank
  std::vector<float> whole_;
};

}  // namespace sluice::engine
