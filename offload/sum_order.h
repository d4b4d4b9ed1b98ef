// SumOrder: in which order the gradients of a step's micro-batches are added up. It belongs to the
// run, as its seed does: lanes and rounds change the last bits of a sum, while waves, tiers and
// ranks never do.
//
// A step's micro-batches are cut into rounds, and each round into lanes: consecutive parts of equal
// size. A lane adds up its micro-batches in their order, from zero. The lanes of a round are added
// by a tree that pairs neighbours level by level, where an odd last one moves up unchanged; the
// sum of a round is added to that of the rounds before it.
//
// So lanes can be added up by different ranks, each of which sends the roots of the largest whole
// subtrees among its lanes, and any number of ranks that divides the lanes returns the same bits.
//
// Who goes through all of them holds the sums that are not added up yet on a stack, as a binary
// counter holds its ones: a micro-batch is added to the topmost sum, its level; a lane that is
// complete is folded, that is, added to the one below it, as often as folds_behind() says. After
// the last micro-batch level 0 is the step's sum.
//
// Threads: a value.
#pragma once

#include <cstdint>

#include "offload/step_program.h"

namespace sluice::offload {

// How many sums of a unit there are at a time.
struct HeldSums {
  int levels = 1;  // at most, while micro-batches are added
  int kept = 0;    // at most, from one wave of a step to the next; 0: it has one wave

  friend bool operator==(const HeldSums&, const HeldSums&) = default;
};

class SumOrder {
 public:
  struct Parts {
    std::int64_t micro_batches = 1;
    std::int64_t lanes = 1;   // of a round
    std::int64_t rounds = 1;  // together they divide the micro-batches: divides()
  };
  SumOrder() = default;
  explicit SumOrder(const Parts& parts);

  static bool divides(const Parts& parts);

  // Which sum a micro-batch is added to, and whether it is that one's first.
  int level(std::int64_t micro_batch) const;
  bool begins_lane(std::int64_t micro_batch) const { return micro_batch % of_a_lane_ == 0; }
  // How often the topmost sum is then added to the one below it.
  int folds_behind(std::int64_t micro_batch) const;
  // Sums that hold something after so many micro-batches, all folds done.
  int open_sums(std::int64_t micro_batches) const;

  HeldSums held(const Waves& waves) const;
  // Of all lanes of a step.
  std::int64_t lanes() const { return parts_.micro_batches / of_a_lane_; }

 private:
  int below(std::int64_t round) const { return round > 0 ? 1 : 0; }  // the rounds before

  Parts parts_;
  std::int64_t of_a_lane_ = 1;
};

}  // namespace sluice::offload
