#include "swap/stripe_weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "aio/split_mix.h"

namespace sluice::swap {
namespace {

using testing::ElementsAre;

DuplexRates rates(double in, double out, double in_both, double out_both) {
  return {.in_bytes_per_s = in,
          .out_bytes_per_s = out,
          .in_both_bytes_per_s = in_both,
          .out_both_bytes_per_s = out_both};
}

// A drive with one pipe for both directions.
PathSpeed drive(double bytes_per_s, int sharers = 1) {
  return {.rates = rates(bytes_per_s, bytes_per_s, bytes_per_s / 2, bytes_per_s / 2),
          .sharers = sharers};
}

TEST(PathWeights, ADriveIsWorthWhatItReadsAndWritesBack) {
  EXPECT_DOUBLE_EQ(swap_bytes_per_s(rates(6, 6, 3, 3)), 3);
  EXPECT_DOUBLE_EQ(swap_bytes_per_s(rates(6, 6, 6, 6)), 6);
  // While six bytes are read in a second one is written, and the other five follow at 2 per second.
  EXPECT_DOUBLE_EQ(swap_bytes_per_s(rates(6, 2, 6, 1)), 6 / 3.5);
  EXPECT_DOUBLE_EQ(swap_bytes_per_s(rates(2, 6, 1, 6)), 6 / 3.5);
  // Not measured simultaneously: the directions alternate.
  EXPECT_DOUBLE_EQ(swap_bytes_per_s(rates(6, 3, 0, 0)), 2);
  EXPECT_EQ(swap_bytes_per_s(rates(6, 0, 3, 0)), 0);
}

TEST(PathWeights, FollowSpeedAndShareADriveThatSeveralPathsAreOn) {
  EXPECT_THAT(weights_by_speed(std::vector{drive(6), drive(2)}), ElementsAre(3, 1));
  EXPECT_THAT(weights_by_speed(std::vector{drive(4, 2), drive(4, 2), drive(4)}),
              ElementsAre(1, 1, 2));
  EXPECT_THAT(weights_by_speed(std::vector{drive(0), drive(2)}), ElementsAre(1, 1));
}

TEST(PathWeights, TheSlowestForItsWeightHoldsUpTheOthers) {
  const std::vector<PathSpeed> paths = {drive(6), drive(2)};
  EXPECT_DOUBLE_EQ(striped_rates(paths, std::vector{1, 1}).in_bytes_per_s, 4);
  EXPECT_DOUBLE_EQ(striped_rates(paths, std::vector{3, 1}).in_bytes_per_s, 8);
  EXPECT_DOUBLE_EQ(striped_rates(paths, std::vector{3, 1}).out_both_bytes_per_s, 4);
  // Something else, such as a bus, lets both do three quarters of what they could.
  const DuplexRates other =
      with_other_weights(rates(6, 6, 3, 3), paths, std::vector{3, 1}, std::vector{1, 1});
  EXPECT_DOUBLE_EQ(other.in_bytes_per_s, 3);
  EXPECT_DOUBLE_EQ(other.out_both_bytes_per_s, 1.5);
}

TEST(PathWeights, RoomEndsWhereAPathIsFull) {
  EXPECT_EQ(striped_room(std::vector<std::uint64_t>{100, 100}, std::vector{1, 1}), 200U);
  EXPECT_EQ(striped_room(std::vector<std::uint64_t>{90, 100}, std::vector{3, 1}), 120U);
  EXPECT_EQ(striped_room(std::vector<std::uint64_t>{0, 100}, std::vector{1, 1}), 0U);
}

TEST(PathWeights, ThatFitStayAndOthersAreLoweredNoFurtherThanNeeded) {
  const std::vector<std::uint64_t> rooms = {30'000, 1'000'000};
  EXPECT_THAT(*weights_within(rooms, std::vector{3, 1}, 40'000), ElementsAre(3, 1));
  EXPECT_THAT(*weights_within(rooms, std::vector{3, 1}, 60'000), ElementsAre(1, 1));
  EXPECT_THAT(*weights_within(rooms, std::vector{3, 1}, 100'000), ElementsAre(3, 7));
  EXPECT_FALSE(weights_within(rooms, std::vector{3, 1}, 1'030'001).has_value());
  // The second keeps twice the share of the third.
  EXPECT_THAT(*weights_within(std::vector<std::uint64_t>{10'000, 900'000, 900'000},
                              std::vector{4, 2, 1}, 100'000),
              ElementsAre(1, 6, 3));
  const std::vector<std::uint64_t> one_is_full = {0, 1'000'000};
  EXPECT_FALSE(weights_within(one_is_full, std::vector{1, 1}, 10).has_value());
}

// The rate of the best shares that the rooms allow, relative to the wanted shares; by bisection.
double best_rate(const std::vector<double>& wanted, const std::vector<double>& most) {
  double low = 0;
  double high = 1;
  for (int i = 0; i < 60; ++i) {
    const double rate = (low + high) / 2;
    double held = 0;
    for (std::size_t path = 0; path < wanted.size(); ++path)
      held += std::min(wanted[path] / rate, most[path]);
    (held >= 1 ? low : high) = rate;
  }
  return low;
}

TEST(PathWeights, OfAnyPathsHoldWhatIsNeededAndAreNearlyAsFastAsCanBe) {
  aio::SplitMix random(17);
  int lowered = 0;
  for (int round = 0; round < 2000; ++round) {
    SCOPED_TRACE(round);
    const std::size_t paths = 2 + random.below(4);
    std::vector<std::uint64_t> rooms;
    std::vector<int> weights;
    for (std::size_t i = 0; i < paths; ++i) {
      rooms.push_back(100'000 + random.below(900'000));
      weights.push_back(1 + static_cast<int>(random.below(8)));
    }
    const auto all = std::accumulate(rooms.begin(), rooms.end(), std::uint64_t{0});
    const std::uint64_t needed = all * (10 + random.below(81)) / 100;
    const auto found = weights_within(rooms, weights, needed);
    ASSERT_TRUE(found.has_value());
    ASSERT_EQ(found->size(), paths);
    const double sum = std::accumulate(found->begin(), found->end(), 0.0);
    const double wanted_sum = std::accumulate(weights.begin(), weights.end(), 0.0);
    std::vector<double> wanted;
    std::vector<double> most;
    double rate = 1;
    for (std::size_t i = 0; i < paths; ++i) {
      const double share = (*found)[i] / sum;
      wanted.push_back(weights[i] / wanted_sum);
      most.push_back(static_cast<double>(rooms[i]) / static_cast<double>(needed));
      EXPECT_LE(share, most[i] * (1 + 1e-9));
      rate = std::min(rate, wanted[i] / share);
    }
    EXPECT_GT(rate, 0.9 * best_rate(wanted, most));
    lowered += striped_room(rooms, weights) < needed ? 1 : 0;
  }
  EXPECT_GT(lowered, 500);
}

TEST(PathWeights, AreWrittenAsRatios) { EXPECT_EQ(to_text(std::vector{3, 1, 12}), "3:1:12"); }

}  // namespace
}  // namespace sluice::swap
