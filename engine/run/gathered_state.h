// GatheredState: the state of shards of all ranks at rank 0, range by range in ascending order, as
// one rank would give it: each rank sends what it has of a unit in its turn.
//
// Memory:  gathered_state_bytes(): of the largest unit a rank's shard, and a message.
// Threads: one. All ranks gather the same units, in one order.
// Errors:  of the link; and where rank 0's visitor fails, it fails on every rank: kCancelled.
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
  // On rank 0.
  using Visit = std::function<Status(const offload::StateRange& range)>;
  // Both must outlive it.
  GatheredState(const ModelLayout& model, const RankLink& ranks, const Visit& visit);

  // This rank's, in ascending order.
  Status add(const offload::StateRange& range);
  // All of them were added.
  Status finish();

 private:
  static constexpr std::size_t kFields = 3;  // master, m, v

  offload::UnitShard shard(int rank) const {
    return offload::shard_of(model_.layout(unit_).elements, {rank, ranks_.part.world});
  }
  void begin_unit();
  Status gather_unit();
  Status send_shard(int rank);

  const ModelLayout& model_;
  const RankLink ranks_;
  const Visit& visit_;
  int unit_ = 0;                // that is being added
  std::vector<float> mine_;     // of its shard, field by field
  std::vector<float> message_;  // likewise, of a part of a shard
  Status visited_;              // rank 0's visitor
};

}  // namespace sluice::engine
