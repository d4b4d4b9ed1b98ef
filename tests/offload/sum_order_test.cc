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

// Reduced by several ranks, each of which walks through its own micro-batches, and by one that
// receives their roots.
std::string reduced(const Parts& all, int world) {
  Parts parts{.micro_batches = all.micro_batches / world,
              .lanes = all.lanes / world,
              .rounds = all.rounds,
              .ranks = {0, world}};
  std::vector<std::string> received;
  HeldSums held;
  for (int rank = 0; rank < world; ++rank) {
    parts.ranks.rank = rank;
    const SumOrder order(parts);
    const Walked walked = walk(order, parts.micro_batches, rank);
    held = order.held({.micro_batches = parts.micro_batches, .of_a_wave = parts.micro_batches});
    EXPECT_LE(walked.levels, held.levels);
    const auto ranks = static_cast<std::size_t>(world);
    received.resize(static_cast<std::size_t>(order.exchanges()) * ranks);
    for (int number = 0; number < order.exchanges(); ++number)
      received[static_cast<std::size_t>(number) * ranks + static_cast<std::size_t>(rank)] =
          walked.sums.at(static_cast<std::size_t>(order.exchange(number)));
  }
  const SumOrder order(parts);
  EXPECT_EQ(held.exchanges, order.exchanges());
  std::set<int> used = {0};
  for (const auto& [to, from] : order.additions()) {
    EXPECT_TRUE(used.insert(from).second) << "added twice";
    std::string& sum = received[static_cast<std::size_t>(to)];
    sum = added(sum, received[static_cast<std::size_t>(from)]);
  }
  return received.front();
}

TEST(SumOrder, IsItsDefinitionForEveryNumberOfRanksThatDividesTheLanes) {
  int orders = 0;
  for (std::int64_t lanes = 1; lanes <= 40; ++lanes) {
    for (int world = 2; world <= lanes; ++world) {
      if (lanes % world != 0) continue;
      for (const auto& [rounds, of_a_lane] : {std::pair{1, 1}, {1, 2}, {2, 1}, {3, 2}}) {
        const Parts parts{
            .micro_batches = lanes * rounds * of_a_lane, .lanes = lanes, .rounds = rounds};
        ASSERT_EQ(reduced(parts, world), definition(parts))
            << lanes << " lanes, " << rounds << " rounds, " << world << " ranks";
        ++orders;
      }
    }
  }
  EXPECT_GT(orders, 400);
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
