// SumOrder: the order in which a step's micro-batch gradients are added up. It is a property of the
// run, like its seed: lanes and rounds change the last bits of a sum; waves, tiers and ranks never
// do.
//
// A step's micro-batches are cut into rounds, and each round into lanes: consecutive parts of equal
// size. A lane adds up its micro-batches in order, from zero. The lanes of a round are added by a
// tree that pairs neighbours level by level; an odd last lane moves up unchanged. Each round's sum
// is added to the sum of the rounds before it.
//
// So lanes can be added up by different ranks, and any number of ranks that divides the lanes
// produces the same bits. A rank owns consecutive lanes of each round; rank 0 owns the first ones.
// It adds up the largest whole subtrees among them and ends with their roots. There is one root if
// its number of lanes is a power of two, else at most twice the logarithm. Ranks exchange all their
// roots, and each adds up its piece of what it received (hops()). With several hosts the ranks of a
// host do this among themselves first, and hosts then exchange the roots of the host's lanes.
//
// A rank that processes its micro-batches in order keeps unfinished sums on a stack, like the ones
// of a binary counter. A micro-batch is added to the topmost sum, its level. A complete lane is
// folded: it is added to the sum below it, as often as folds_after() says. After the last
// micro-batch level 0 is the step's sum. With several ranks, levels 0 to roots() - 1 are this
// rank's roots.
//
// Threads: a value.
#pragma once

#include <cstdint>
#include <vector>

#include "offload/step_program.h"
#include "offload/sum_codec.h"
#include "offload/unit_shards.h"

namespace sluice::offload {

// How many gradient sums of a unit exist at a time.
struct HeldSums {
  int levels = 1;  // maximum while micro-batches are added
  int kept = 0;    // maximum from one wave of a step to the next; 0: a single wave
  // The exchanges that reduce it. With several hosts: first within each host, then among hosts.
  int exchanges = 1;
  int host_exchanges = 0;
  SumCodec codec = SumCodec::kFp32;

  friend bool operator==(const HeldSums&, const HeldSums&) = default;
};

class SumOrder {
 public:
  struct Parts {  // one rank's part; all ranks have equal parts
    std::int64_t micro_batches = 1;
    std::int64_t lanes = 1;   // per round
    std::int64_t rounds = 1;  // lanes * rounds divides the micro-batches: divides()
    RankPart ranks = {};
    SumCodec codec = SumCodec::kFp32;  // of sums on their way between ranks
  };
  SumOrder() = default;
  explicit SumOrder(const Parts& parts);

  static bool divides(const Parts& parts);

  // The level of the sum to which a micro-batch is added, and whether it is the first one of its
  // lane.
  int level(std::int64_t micro_batch) const;
  bool begins_lane(std::int64_t micro_batch) const { return micro_batch % of_a_lane_ == 0; }
  // How often the topmost sum is then added to the sum below it.
  int folds_after(std::int64_t micro_batch) const;
  // The number of sums in use after this many micro-batches, with all folds done.
  int open_sums(std::int64_t micro_batches) const;

  // Maximum over all ranks, so every rank gets the same numbers.
  HeldSums held(const Waves& waves) const;
  // The lanes of all rounds of a step, on this rank.
  std::int64_t lanes() const { return parts_.micro_batches / of_a_lane_; }
  // The number within the step of a rank's micro-batch.
  std::int64_t number_in_step(std::int64_t micro_batch, int rank) const;

  // The number of sums that this rank has of a unit in the end.
  int roots() const;
  SumCodec codec() const { return parts_.codec; }
  int exchanges() const;       // HeldSums
  int host_exchanges() const;  // HeldSums
  // What is exchanged among all ranks (one hop), or among the ranks of this host and then among
  // hosts (two hops). None for one rank.
  struct Addition {
    int to = 0;
    int from = 0;
  };
  struct Hop {
    int members = 1;  // ranks or hosts
    // By exchange: the number of the sum that this rank sends: of its roots, or of the sums
    // received in the hop before. A rank with fewer sums than others repeats one, which is never
    // added.
    std::vector<int> sent;
    // The sum received from member m in exchange x has the number x * members + m. Additions run in
    // this order. After the last hop number 0 is the step's sum.
    std::vector<Addition> additions;
  };
  std::vector<Hop> hops() const;
  // The pieces that a rank receives in all exchanges, its own included.
  static std::uint64_t received_pieces(const HeldSums& sums, const RankPart& ranks);
  // What it needs for that, in pieces of so many elements: they are received in fp32, next to what
  // one exchange sends and receives in another codec.
  static std::uint64_t exchange_bytes(const HeldSums& sums, const RankPart& ranks,
                                      std::uint64_t piece_elements);

 private:
  struct RankRange {
    int first = 0;
    int end = 0;
  };
  // The rounds whose sums stay separate until ranks exchange them. One rank exchanges nothing and
  // adds each round to the ones before.
  std::int64_t separate_rounds() const { return parts_.ranks.world > 1 ? parts_.rounds : 1; }
  std::int64_t all_lanes() const { return parts_.lanes * parts_.ranks.world; }
  // The number of sums that hold lanes [first, end) of a round, numbered over all ranks.
  int subtrees(std::int64_t first, std::int64_t end) const;
  int roots_of(int rank) const;  // per round
  int most_roots() const;        // per round, maximum over all ranks
  // The sums that are left when those received from `ranks` are added, round by round. `hop` has
  // these ranks as members, and gets the additions.
  std::vector<int> add(const RankRange& ranks, Hop& hop) const;
  SumOrder of_host() const;                   // with hosts as ranks
  int below(std::int64_t round) const;        // sums of the earlier rounds
  int own_subtrees(std::int64_t lane) const;  // before this rank's lane, within its round

  Parts parts_;
  std::int64_t of_a_lane_ = 1;
};

}  // namespace sluice::offload
