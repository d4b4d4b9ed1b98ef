// SumOrder: in which order the gradients of a step's micro-batches are added up. It belongs to the
// run, as its seed does: lanes and rounds change the last bits of a sum, while waves, tiers and
// ranks never do.
//
// A step's micro-batches are cut into rounds, and each round into lanes: consecutive parts of equal
// size. A lane adds up its micro-batches in their order, from zero. The lanes of a round are added
// by a tree that pairs neighbours level by level, where an odd last one moves up unchanged; the
// sum of a round is added to that of the rounds before it.
//
// So lanes can be added up by different ranks, and any number of ranks that divides the lanes
// returns the same bits. A rank has neighbouring lanes of each round, those of the first rank
// first. It adds up the largest whole subtrees among them, whose roots are what it has in the end:
// one where its lanes are a power of two, else at most twice the logarithm. Ranks exchange all
// their roots, as exchange() numbers them, and each adds up what it has received as additions()
// says.
//
// Who goes through all of them holds the sums that are not added up yet on a stack, as a binary
// counter holds its ones: a micro-batch is added to the topmost sum, its level; a lane that is
// complete is folded, that is, added to the one below it, as often as folds_behind() says. After
// the last micro-batch level 0 is the step's sum, or, with several ranks, levels 0 to roots() - 1
// are this one's roots.
//
// Threads: a value.
#pragma once

#include <cstdint>
#include <vector>

#include "offload/step_program.h"
#include "offload/unit_shards.h"

namespace sluice::offload {

// How many sums of a unit there are at a time.
struct HeldSums {
  int levels = 1;     // at most, while micro-batches are added
  int kept = 0;       // at most, from one wave of a step to the next; 0: it has one wave
  int exchanges = 1;  // that several ranks reduce it by

  friend bool operator==(const HeldSums&, const HeldSums&) = default;
};

class SumOrder {
 public:
  struct Parts {  // of a rank; all have as many
    std::int64_t micro_batches = 1;
    std::int64_t lanes = 1;   // of a round
    std::int64_t rounds = 1;  // together they divide the micro-batches: divides()
    RankPart ranks = {};
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

  // The same for every rank: of the one that holds most.
  HeldSums held(const Waves& waves) const;
  // Of all lanes of a step, of this rank.
  std::int64_t lanes() const { return parts_.micro_batches / of_a_lane_; }
  // The number in the step of a rank's micro-batch.
  std::int64_t number_in_step(std::int64_t micro_batch, int rank) const;

  // What this rank has of a unit in the end.
  int roots() const;
  // Each exchange sends a root of every rank, which one is up to this; where a rank has no more,
  // any, which nobody adds.
  int exchanges() const;
  int exchange(int number) const;
  // What was received of rank r in exchange x has the number x * ranks + r. In this order; at last
  // number 0 is the sum. None where there is one rank.
  struct Addition {
    int to = 0;
    int from = 0;
  };
  std::vector<Addition> additions() const;

 private:
  bool is_alone() const { return parts_.ranks.world == 1; }
  std::int64_t all_lanes() const { return parts_.lanes * parts_.ranks.world; }
  // Sums that hold what lanes [first, end) of a round have added up, numbered over all ranks.
  int subtrees(std::int64_t first, std::int64_t end) const;
  int roots_of(int rank) const;               // of a round
  int most_roots() const;                     // likewise
  int below(std::int64_t round) const;        // sums of the rounds before
  int own_subtrees(std::int64_t lane) const;  // before a lane of this rank, of its round

  Parts parts_;
  std::int64_t of_a_lane_ = 1;
};

}  // namespace sluice::offload
