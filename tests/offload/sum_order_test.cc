#include "offload/sum_order.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <utility>
#include <vector>

namespace sluice::offload {
namespace {

using Parts = SumOrder::Parts;

std::string added(const std::string& a, const std::string& b) { return "(" + a + "+" + b + ")"; }

// The definition of which values are added, written out level by level.
std::string definition(const Parts& parts) {
  const std::int64_t of_a_lane = parts.micro_batches / (parts.lanes * parts.rounds);
  std::int64_t micro_batch = 0;
  std::string sum;
  for (std::int64_t round = 0; round < parts.rounds; ++round) {
    std::vector<std::string> nodes;
    for (std::int64_t lane = 0; lane < parts.lanes; ++lane) {
      std::string of_lane = std::to_string(micro_batch++);
      for (std::int64_t i = 1; i < of_a_lane; ++i)
        of_lane = added(of_lane, std::to_string(micro_batch++));
      nodes.push_back(of_lane);
    }
    while (nodes.size() > 1) {
      std::vector<std::string> above;
      for (std::size_t i = 0; i < nodes.size(); i += 2)
        above.push_back(i + 1 < nodes.size() ? added(nodes[i], nodes[i + 1]) : nodes[i]);
      nodes = above;
    }
    sum = sum.empty() ? nodes[0] : added(sum, nodes[0]);
  }
  return sum;
}

// The same, by walking through the micro-batches, with the largest number of sums held at once.
struct Walked {
  std::vector<std::string> sums;
  int levels = 0;
};
Walked walk(const SumOrder& order, std::int64_t micro_batches, int rank = 0) {
  std::vector<std::string> sums;
  Walked walked;
  for (std::int64_t m = 0; m < micro_batches; ++m) {
    const auto level = static_cast<std::size_t>(order.level(m));
    const std::string name = std::to_string(order.number_in_step(m, rank));
    if (order.begins_lane(m)) {
      EXPECT_EQ(level, sums.size()) << m;
      sums.push_back(name);
    } else {
      EXPECT_EQ(level + 1, sums.size()) << m;
      sums.back() = added(sums.back(), name);
    }
    walked.levels = std::max(walked.levels, static_cast<int>(sums.size()));
    for (int fold = 0; fold < order.folds_after(m); ++fold) {
      const std::string top = sums.back();
      sums.pop_back();
      sums.back() = added(sums.back(), top);
    }
    EXPECT_EQ(order.open_sums(m + 1), static_cast<int>(sums.size())) << m;
  }
  EXPECT_EQ(static_cast<int>(sums.size()), order.roots());
  walked.sums = sums;
  return walked;
}

TEST(SumOrder, IsItsDefinitionForEveryNumberOfLanesAndRounds) {
  int orders = 0;
  for (std::int64_t micro_batches = 1; micro_batches <= 48; ++micro_batches) {
    for (std::int64_t lanes = 1; lanes <= micro_batches; ++lanes) {
      for (std::int64_t rounds = 1; rounds <= micro_batches; ++rounds) {
        const Parts parts{.micro_batches = micro_batches, .lanes = lanes, .rounds = rounds};
        if (!SumOrder::divides(parts)) continue;
        const SumOrder order(parts);
        const Walked walked = walk(order, micro_batches);
        ASSERT_EQ(walked.sums.front(), definition(parts))
            << lanes << " lanes, " << rounds << " rounds";
        EXPECT_EQ(order.held({.micro_batches = micro_batches, .of_a_wave = micro_batches}),
                  (HeldSums{.levels = walked.levels, .kept = 0}));
        ++orders;
      }
    }
  }
  EXPECT_GT(orders, 500);
}

// Reduced by several ranks, each of which walks through its own micro-batches, sends its sums and
// adds up what it receives, hop by hop. Returns what each rank has in the end.
std::set<std::string> reduced(const Parts& all, int world, int hosts) {
  Parts parts{
      .micro_batches = all.micro_batches / world, .lanes = all.lanes / world, .rounds = all.rounds};
  const auto order_of = [&](int rank) {
    parts.ranks = {.rank = rank, .world = world, .hosts = hosts};
    return SumOrder(parts);
  };
  std::vector<std::vector<std::string>> sums;  // by rank
  std::vector<std::vector<SumOrder::Hop>> hops;
  for (int rank = 0; rank < world; ++rank) {
    const SumOrder order = order_of(rank);
    const Walked walked = walk(order, parts.micro_batches, rank);
    const HeldSums held =
        order.held({.micro_batches = parts.micro_batches, .of_a_wave = parts.micro_batches});
    EXPECT_LE(walked.levels, held.levels);
    sums.push_back(walked.sums);
    hops.push_back(order.hops());
    // In the first hop a rank gets a piece for each rank, and in the second one for each host.
    std::size_t received = hops.back().front().sent.size() * static_cast<std::size_t>(world);
    if (hops.back().size() > 1)
      received += hops.back().back().sent.size() * static_cast<std::size_t>(hosts);
    EXPECT_EQ(SumOrder::received_pieces(held, parts.ranks), received);
  }
  const int of_host = hosts == world ? world : world / hosts;  // one rank each: all at once
  for (std::size_t number = 0; number < hops.front().size(); ++number) {
    const bool among_hosts = number == 1;
    std::vector<std::vector<std::string>> next;
    for (int rank = 0; rank < world; ++rank) {
      const SumOrder::Hop& hop = hops[static_cast<std::size_t>(rank)][number];
      EXPECT_EQ(hop.members, among_hosts ? hosts : of_host);
      std::vector<std::string> received;
      for (std::size_t exchange = 0; exchange < hop.sent.size(); ++exchange) {
        for (int member = 0; member < hop.members; ++member) {
          const int from =
              among_hosts ? member * of_host + rank % of_host : rank / of_host * of_host + member;
          const auto sent = static_cast<std::size_t>(
              hops[static_cast<std::size_t>(from)][number].sent.at(exchange));
          received.push_back(sums[static_cast<std::size_t>(from)].at(sent));
        }
      }
      std::set<int> used;
      for (const auto& [to, from] : hop.additions) {
        EXPECT_FALSE(used.contains(to)) << "added to what was added";
        EXPECT_TRUE(used.insert(from).second) << "added twice";
        std::string& sum = received.at(static_cast<std::size_t>(to));
        sum = added(sum, received.at(static_cast<std::size_t>(from)));
      }
      next.push_back(std::move(received));
    }
    sums = std::move(next);
  }
  std::set<std::string> results;
  for (const std::vector<std::string>& of_rank : sums) results.insert(of_rank.front());
  return results;
}

TEST(SumOrder, IsItsDefinitionForEveryNumberOfRanksAndHostsThatDividesTheLanes) {
  int orders = 0;
  int by_host = 0;
  for (std::int64_t lanes = 1; lanes <= 40; ++lanes) {
    for (int world = 2; world <= lanes; ++world) {
      if (lanes % world != 0) continue;
      for (const auto& [rounds, of_a_lane] : {std::pair{1, 1}, {1, 2}, {2, 1}, {3, 2}}) {
        const Parts parts{
            .micro_batches = lanes * rounds * of_a_lane, .lanes = lanes, .rounds = rounds};
        for (int hosts = 1; hosts <= world; ++hosts) {
          if (world % hosts != 0) continue;
          ASSERT_EQ(reduced(parts, world, hosts), std::set{definition(parts)})
              << lanes << " lanes, " << rounds << " rounds, " << world << " ranks, " << hosts
              << " hosts";
          ++orders;
          by_host += hosts > 1 && hosts < world ? 1 : 0;
        }
      }
    }
  }
  EXPECT_GT(orders, 400);
  EXPECT_GT(by_host, 400);
}

TEST(SumOrder, SendsTheModelOncePerHost) {
  const auto held = [](std::int64_t lanes, int world, int hosts) {
    const SumOrder order({.micro_batches = lanes / world,
                          .lanes = lanes / world,
                          .ranks = {.rank = 0, .world = world, .hosts = hosts}});
    return order.held({.micro_batches = lanes / world, .of_a_wave = lanes / world});
  };
  EXPECT_EQ(held(64, 64, 8), (HeldSums{.exchanges = 1, .host_exchanges = 1}));
  EXPECT_EQ(held(12, 12, 2).host_exchanges, 2);  // 6 lanes are 4 + 2
  EXPECT_EQ(held(12, 12, 3).host_exchanges, 1);
  EXPECT_EQ(SumOrder::received_pieces(held(64, 64, 8), {.rank = 0, .world = 64, .hosts = 8}), 72U);
}

TEST(SumOrder, SendsOneSumOfARankThatHasAPowerOfTwoOfTheLanes) {
  const auto exchanges = [](std::int64_t lanes, int world) {
    return SumOrder({.micro_batches = lanes / world, .lanes = lanes / world, .ranks = {0, world}})
        .exchanges();
  };
  EXPECT_EQ(exchanges(8, 2), 1);
  EXPECT_EQ(exchanges(12, 3), 1);
  EXPECT_EQ(exchanges(12, 2), 2);
  EXPECT_EQ(exchanges(12, 4), 2);
  EXPECT_EQ(exchanges(120, 8), 4);  // lanes 15 to 29 are 1 + 8 + 4 + 2
}

TEST(SumOrder, KeepsNoMoreThanALogarithmOfSumsFromWaveToWave) {
  const Waves waves{.micro_batches = 64, .of_a_wave = 1};
  const auto held = [&](std::int64_t lanes, std::int64_t rounds) {
    return SumOrder({.micro_batches = 64, .lanes = lanes, .rounds = rounds}).held(waves);
  };
  EXPECT_EQ(held(1, 1), (HeldSums{.levels = 1, .kept = 1}));
  EXPECT_EQ(held(4, 1), (HeldSums{.levels = 3, .kept = 3}));
  EXPECT_EQ(held(64, 1), (HeldSums{.levels = 7, .kept = 6}));
  EXPECT_EQ(held(1, 64), (HeldSums{.levels = 2, .kept = 1}));
  EXPECT_EQ(held(4, 2), (HeldSums{.levels = 4, .kept = 4}));
}

TEST(SumOrder, IsRefusedWhereItDoesNotDivideTheMicroBatches) {
  EXPECT_TRUE(SumOrder::divides({.micro_batches = 12, .lanes = 3, .rounds = 2}));
  EXPECT_FALSE(SumOrder::divides({.micro_batches = 12, .lanes = 5, .rounds = 1}));
  EXPECT_FALSE(SumOrder::divides({.micro_batches = 12, .lanes = 4, .rounds = 2}));
  EXPECT_FALSE(SumOrder::divides({.micro_batches = 12, .lanes = 0, .rounds = 1}));
  EXPECT_FALSE(SumOrder::divides({.micro_batches = 2, .lanes = 4, .rounds = 1}));
}

}  // namespace
}  // namespace sluice::offload
