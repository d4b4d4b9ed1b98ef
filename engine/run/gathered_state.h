// GatheredState: gathers the sharded state of all ranks at rank 0, range by range in ascending
// order, as a single rank would visit it. The ranks send their shards of a unit in turn. Used where
// one rank writes one file; a checkpoint is written by all ranks at once (joint_save.h).
//
// Memory:  one message: kGatheredElements of state.
// Threads: one. All ranks gather the same units in the same order.
// Errors:  those of the link. A failure of rank 0's visitor fails on every rank: kCancelled.
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
  // Called on rank 0.
  using Visit = offload::StateSweep::Visit;
  // All three arguments must outlive this.
  GatheredState(const ModelLayout& model, const RankLink& ranks, const Visit& visit);

  // Adds a slice of this rank's state, in ascending order. Waits for this rank's turn.
  Status add(int unit, const offload::StateSlice& slice);
  // Call it once all of this rank's slices were added.
  Status finish();

 private:
  offload::UnitShard shard(int rank) const {
    return offload::shard_of(model_.layout(unit_).elements, {rank, ranks_.part.world});
  }
  bool is_my_turn() const { return turn_ == ranks_.part.rank; }
  // Elements of the next message, from the shard whose turn it is.
  std::uint64_t message_elements() const;
  Status send_message();
  // Moves on to the next shard, and receives it unless it is this rank's own.
  Status next_turn();
  Status end_unit();

  const ModelLayout& model_;
  const RankLink ranks_;
  const Visit& visit_;
  int unit_ = 0;
  int turn_ = 0;                // rank whose shard is being sent
  std::uint64_t sent_ = 0;      // elements sent of that shard
  std::uint64_t filled_ = 0;    // elements in the message, during this rank's turn
  std::vector<float> message_;  // field by field
  Status visited_;              // status of rank 0's visitor
};

// Collective. At rank 0 it visits the state of all ranks in order, as RunState::take() does; on
// other ranks `take` may be empty. One rank takes its own state, without messages; `calls` then
// applies.
Status take_gathered_state(const RunState& own, const RankLink& ranks, const TakeState& take,
                           offload::Calls calls = offload::Calls::kInOrder);

}  // namespace sluice::engine
