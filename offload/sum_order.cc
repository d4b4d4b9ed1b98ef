#include "offload/sum_order.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "aio/check.h"

namespace sluice::offload {
namespace {

std::uint64_t lowest_bit(std::int64_t number) {
  const auto bits = static_cast<std::uint64_t>(number);
  return bits & (~bits + 1);
}

// The number of lanes in the largest whole subtree that begins with `first` and ends at or before
// `end`.
std::int64_t subtree_at(std::int64_t first, std::int64_t end) {
  const std::uint64_t room = std::bit_floor(static_cast<std::uint64_t>(end - first));
  return static_cast<std::int64_t>(first == 0 ? room : std::min(room, lowest_bit(first)));
}

// Whether hosts have several ranks, which add up their sums first.
bool adds_by_host(const RankPart& ranks) { return ranks.hosts > 1 && ranks.world > ranks.hosts; }

// A subtree that ends with the last lane counts as whole, as if more lanes followed.
std::int64_t end_of_tree(std::int64_t end, std::int64_t lanes) {
  return end == lanes ? static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(lanes)))
                      : end;
}

}  // namespace

SumOrder::SumOrder(const Parts& parts) : parts_(parts) {
  SLUICE_CHECK(divides(parts), "lanes and rounds divide a step's micro-batches");
  of_a_lane_ = parts.micro_batches / (parts.lanes * parts.rounds);
}

bool SumOrder::divides(const Parts& parts) {
  return parts.lanes > 0 && parts.rounds > 0 && parts.micro_batches >= parts.lanes &&
         parts.micro_batches / parts.lanes >= parts.rounds &&
         parts.micro_batches % (parts.lanes * parts.rounds) == 0;
}

int SumOrder::subtrees(std::int64_t first, std::int64_t end) const {
  const std::int64_t lanes = all_lanes();
  const std::int64_t whole_end = end_of_tree(end, lanes);
  int count = 0;
  for (; first < end; first += subtree_at(first, whole_end)) ++count;
  return count;
}

int SumOrder::roots_of(int rank) const {
  return subtrees(rank * parts_.lanes, (rank + 1) * parts_.lanes);
}

int SumOrder::most_roots() const {
  int most = 1;
  for (int rank = 0; rank < parts_.ranks.world; ++rank) most = std::max(most, roots_of(rank));
  return most;
}

int SumOrder::below(std::int64_t round) const {
  return static_cast<int>(std::min(round, separate_rounds())) * roots_of(parts_.ranks.rank);
}

int SumOrder::own_subtrees(std::int64_t lane) const {
  const std::int64_t first = parts_.ranks.rank * parts_.lanes;
  return subtrees(first, first + lane % parts_.lanes);
}

int SumOrder::level(std::int64_t micro_batch) const {
  const std::int64_t lane = micro_batch / of_a_lane_;
  return below(lane / parts_.lanes) + own_subtrees(lane);
}

int SumOrder::folds_after(std::int64_t micro_batch) const {
  return level(micro_batch) + 1 - open_sums(micro_batch + 1);
}

int SumOrder::open_sums(std::int64_t micro_batches) const {
  const std::int64_t lane = micro_batches / of_a_lane_;
  const int complete = below(lane / parts_.lanes) + own_subtrees(lane);
  return complete + (micro_batches % of_a_lane_ == 0 ? 0 : 1);
}

HeldSums SumOrder::held(const Waves& waves) const {
  HeldSums held{
      .exchanges = exchanges(), .host_exchanges = host_exchanges(), .codec = parts_.codec};
  Parts parts = parts_;
  for (parts.ranks.rank = 0; parts.ranks.rank < parts.ranks.world; ++parts.ranks.rank) {
    const SumOrder of_rank(parts);
    for (std::int64_t lane = 0; lane < lanes(); ++lane)
      held.levels = std::max(held.levels, of_rank.level(lane * of_a_lane_) + 1);
    for (int wave = 1; wave < waves.count(); ++wave)
      held.kept = std::max(held.kept, of_rank.open_sums(waves.first(wave)));
  }
  return held;
}

std::int64_t SumOrder::number_in_step(std::int64_t micro_batch, int rank) const {
  const std::int64_t of_a_round = of_a_lane_ * parts_.lanes;
  const std::int64_t round = micro_batch / of_a_round;
  return (round * parts_.ranks.world + rank) * of_a_round + micro_batch % of_a_round;
}

int SumOrder::roots() const {
  return static_cast<int>(separate_rounds()) * roots_of(parts_.ranks.rank);
}

int SumOrder::exchanges() const { return static_cast<int>(separate_rounds()) * most_roots(); }

int SumOrder::host_exchanges() const {
  return adds_by_host(parts_.ranks) ? of_host().exchanges() : 0;
}

std::uint64_t SumOrder::received_pieces(const HeldSums& sums, const RankPart& ranks) {
  if (ranks.world == 1) return 0;
  return static_cast<std::uint64_t>(sums.exchanges) * static_cast<std::uint64_t>(ranks.world) +
         static_cast<std::uint64_t>(sums.host_exchanges) * static_cast<std::uint64_t>(ranks.hosts);
}

std::uint64_t SumOrder::exchange_bytes(const HeldSums& sums, const RankPart& ranks,
                                       std::uint64_t piece_elements) {
  const std::uint64_t bytes = received_pieces(sums, ranks) * piece_elements * sizeof(float);
  if (ranks.world == 1 || sums.codec == SumCodec::kFp32) return bytes;
  return bytes + 2 * static_cast<std::uint64_t>(ranks.world) *
                     encoded_sum_bytes(sums.codec, piece_elements);
}

SumOrder SumOrder::of_host() const {
  const int ranks = parts_.ranks.world / parts_.ranks.hosts;
  return SumOrder({.micro_batches = parts_.micro_batches * ranks,
                   .lanes = parts_.lanes * ranks,
                   .rounds = parts_.rounds,
                   .ranks = {.rank = parts_.ranks.rank / ranks, .world = parts_.ranks.hosts}});
}

std::vector<int> SumOrder::add(const RankRange& ranks, Hop& hop) const {
  std::vector<int> left;
  const int of_a_round = most_roots();
  const std::int64_t first_lane = ranks.first * parts_.lanes;
  for (int round = 0; round < static_cast<int>(separate_rounds()); ++round) {
    std::vector<int> sums;  // the round's sums that are not added up yet
    for (int rank = ranks.first; rank < ranks.end; ++rank) {
      const std::int64_t end = (rank + 1) * parts_.lanes;
      std::int64_t lane = rank * parts_.lanes;
      for (int root = 0; lane < end; ++root) {
        lane = std::min(end, lane + subtree_at(lane, end_of_tree(end, all_lanes())));
        sums.push_back((round * of_a_round + root) * hop.members + rank - ranks.first);
        while (static_cast<int>(sums.size()) > subtrees(first_lane, lane)) {
          const int from = sums.back();
          sums.pop_back();
          hop.additions.push_back({.to = sums.back(), .from = from});
        }
      }
    }
    left.insert(left.end(), sums.begin(), sums.end());
  }
  return left;
}

std::vector<SumOrder::Hop> SumOrder::hops() const {
  const int rank = parts_.ranks.rank;
  const int world = parts_.ranks.world;
  if (world == 1) return {};
  const bool by_host = adds_by_host(parts_.ranks);
  const int members = by_host ? world / parts_.ranks.hosts : world;
  const int first = rank / members * members;
  Hop hop{.members = members};
  const int of_a_round = most_roots();
  const int own = roots_of(rank);
  for (int number = 0; number < exchanges(); ++number)
    hop.sent.push_back(number / of_a_round * own + std::min(number % of_a_round, own - 1));
  const std::vector<int> left = add({first, first + members}, hop);
  if (by_host) {
    Hop last = of_host().hops().front();
    for (int& sum : last.sent) sum = left[static_cast<std::size_t>(sum)];
    return {std::move(hop), std::move(last)};
  }
  for (std::size_t round = 1; round < left.size(); ++round)
    hop.additions.push_back({.to = left.front(), .from = left[round]});
  return {std::move(hop)};
}

}  // namespace sluice::offload
