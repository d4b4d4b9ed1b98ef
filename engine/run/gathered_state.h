// GatheredState: the state of shards of all ranks at rank 0, range by range in ascending order, as
// one rank would give it: each rank sends what it has of a unit in its turn. For one file that one
// rank writes; a checkpoint is written by all at once (joint_save.h).
//
// Memory:  a message: kGatheredElements of state.
// Threads: one. All ranks gather the same units, in one order.
// Errors:  of the link; and where rank 0's visitor fails, it fails on every rank: kCancelled.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "aio/result.h"
#include "engine/model/model_layout.h"
#include "engine/runtime/run_state.h"
#include "engine/step/rank_reduction.h"
#include "offload/state/state_sweep.h"

namespace sluice::engine {

class GatheredState {
 public:
  // On rank 0.
  using Visit = offload::StateSweep::Visit;
  // Both must outlive it.
  GatheredState(const ModelLayout& model, const RankLink& ranks, const Visit& visit);

  // This rank's, in ascending order. Waits for its turn.
  Status add(int unit, const offload::StateSlice& slice);
  // All of them were added.
  Status finish();

 private:
  offload::UnitShard shard(int rank) const {
    return offload::shard_of(model_.layout(unit_).elements, {rank, ranks_.part.world});
  }
  bool is_my_turn() const { return turn_ == ranks_.part.rank; }
  // Of the shard whose turn it is: what the next message has.
  std::uint64_t message_elements() const;
  Status send_message();
  // To the next shard, which this rank receives unless it is its own.
  Status next_turn();
  Status end_unit();

  const ModelLayout& model_;
  const RankLink ranks_;
  const Visit& visit_;
  int unit_ = 0;
  int turn_ = 0;                // whose shard of it is sent
  std::uint64_t sent_ = 0;      // of that
  std::uint64_t filled_ = 0;    // of the message, where it is this rank's turn
  std::vector<float> message_;  // field by field
  Status visited_;              // rank 0's visitor
};

// For all ranks to call: at rank 0 RunState::take(), in order, of what all of them have; on others
// `take` may be empty.
Status take_gathered_state(const RunState& own, const RankLink& ranks, const TakeState& take);

}  // namespace sluice::engine
