#include "engine/data/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <tuple>
#include <vector>

#include "tests/aio/backends_under_test.h"

namespace sluice::data {
namespace {

using testing::HasSubstr;
using Place = std::tuple<std::uint32_t, std::uint64_t, std::uint64_t>;  // file, token, epoch

Place place(const Sample& sample) { return {sample.file, sample.first_token, sample.epoch}; }

ShuffledSampler shuffled(const std::vector<TokenRange>& ranges, std::uint64_t sequence_tokens,
                         std::uint64_t seed = 7) {
  auto sampler =
      ShuffledSampler::create(ranges, {.sequence_tokens = sequence_tokens, .seed = seed});
  EXPECT_OK(sampler);
  return *std::move(sampler);
}

const std::vector<TokenRange> kTwoRanges = {{0, 0, 1000}, {1, 100, 350}};

TEST(ShuffledSampler, DrawsEveryWindowOncePerEpochWithinItsRange) {
  for (std::uint64_t length = 1; length <= 60; ++length) {
    const ShuffledSampler sampler = shuffled(kTwoRanges, length);
    for (std::uint64_t epoch = 0; epoch < 5; ++epoch) {
      std::map<std::uint32_t, std::set<std::uint64_t>> starts;
      for (std::uint64_t i = 0; i < sampler.samples_per_epoch(); ++i) {
        const Sample sample = sampler.at(epoch * sampler.samples_per_epoch() + i);
        ASSERT_EQ(sample.epoch, epoch);
        ASSERT_LT(sample.file, 2U);
        ASSERT_GE(sample.first_token, kTwoRanges[sample.file].begin);
        ASSERT_LE(sample.first_token + length + 1, kTwoRanges[sample.file].end);
        ASSERT_TRUE(starts[sample.file].insert(sample.first_token).second) << "drawn twice";
      }
      for (const auto& [file, in_file] : starts) {
        // All are `length` apart, with at most 2T - 2 tokens left over.
        EXPECT_EQ(*in_file.rbegin() - *in_file.begin(), (in_file.size() - 1) * length);
        EXPECT_GT((in_file.size() + 2) * length, kTwoRanges[file].token_count());
      }
    }
  }
}

TEST(ShuffledSampler, MovesTheWindowsFromEpochToEpochAndReachesEveryToken) {
  const std::vector<TokenRange> range = {{0, 0, 103}};  // 8 windows of 11; slack 14
  const ShuffledSampler sampler = shuffled(range, 11);
  std::set<std::uint64_t> shifts;
  std::set<std::uint64_t> seen;
  for (std::uint64_t k = 0; k < 200 * sampler.samples_per_epoch(); ++k) {
    const Sample sample = sampler.at(k);
    shifts.insert(sample.first_token % 11);
    for (std::uint64_t i = 0; i <= 11; ++i) seen.insert(sample.first_token + i);
  }
  EXPECT_EQ(shifts.size(), 11U);
  EXPECT_EQ(seen.size(), 103U);
}

TEST(ShuffledSampler, ShufflesDifferentlyInEachEpochAndForEachSeed) {
  std::set<std::vector<std::uint64_t>> orders;
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    const ShuffledSampler sampler = shuffled(kTwoRanges, 16, seed);
    for (std::uint64_t epoch = 0; epoch < 10; ++epoch) {
      std::vector<std::uint64_t> order;
      for (std::uint64_t i = 0; i < sampler.samples_per_epoch(); ++i) {
        const Sample sample = sampler.at(epoch * sampler.samples_per_epoch() + i);
        order.push_back(sample.first_token / 16 + 1000 * sample.file);
      }
      orders.insert(order);
    }
  }
  EXPECT_EQ(orders.size(), 100U);
}

TEST(ShuffledSampler, ResumedIsTheSameAsStraightThrough) {
  const ShuffledSampler straight = shuffled(kTwoRanges, 16);
  std::vector<Place> all;
  for (std::uint64_t k = 0; k < 400; ++k) all.push_back(place(straight.at(k)));
  for (std::uint64_t stop = 0; stop < 400; stop += 13) {
    const ShuffledSampler resumed = shuffled(kTwoRanges, 16);
    for (std::uint64_t k = 400; k-- > stop;) ASSERT_EQ(place(resumed.at(k)), all[k]);
  }
}

// From an independent implementation in Python: the order defines what a checkpoint's position
// means.
TEST(ShuffledSampler, KeepsItsSamplesForEver) {
  const ShuffledSampler sampler = shuffled(kTwoRanges, 16);
  EXPECT_EQ(sampler.samples_per_epoch(), 75U);
  EXPECT_EQ(place(sampler.at(0)), Place(0, 629, 0));
  EXPECT_EQ(place(sampler.at(1)), Place(1, 124, 0));
  EXPECT_EQ(place(sampler.at(2)), Place(0, 213, 0));
  EXPECT_EQ(place(sampler.at(74)), Place(0, 469, 0));
  EXPECT_EQ(place(sampler.at(75)), Place(0, 657, 1));
  EXPECT_EQ(place(sampler.at(1000000)), Place(0, 357, 13333));
}

TEST(ShuffledSampler, TellsOrdersApartThatAPositionMustNotBeCarriedBetween) {
  std::set<std::uint64_t> ids;
  ids.insert(shuffled(kTwoRanges, 16, 7).order_id());
  EXPECT_EQ(shuffled(kTwoRanges, 16, 7).order_id(), *ids.begin());
  ids.insert(shuffled(kTwoRanges, 16, 8).order_id());
  ids.insert(shuffled(kTwoRanges, 17, 7).order_id());
  ids.insert(shuffled({{0, 0, 1000}, {1, 100, 351}}, 16, 7).order_id());
  ids.insert(shuffled({{0, 0, 1000}, {1, 99, 350}}, 16, 7).order_id());
  ids.insert(shuffled({{1, 100, 350}, {0, 0, 1000}}, 16, 7).order_id());
  ids.insert(shuffled({{0, 0, 1000}}, 16, 7).order_id());
  EXPECT_EQ(ids.size(), 7U);
}

TEST(ShuffledSampler, LeavesOutRangesWithoutAWindowAndUsesThoseWithJustOne) {
  const ShuffledSampler sampler = shuffled({{0, 0, 5}, {1, 0, 0}, {2, 3, 12}, {3, 0, 8}}, 8);
  EXPECT_EQ(sampler.samples_per_epoch(), 1U);
  for (std::uint64_t k = 0; k < 10; ++k) EXPECT_EQ(place(sampler.at(k)), Place(2, 3, k));
}

TEST(ShuffledSampler, SaysHowManyTokensThereAreAndAreNeeded) {
  const std::vector<TokenRange> ranges = {{0, 0, 300}, {1, 0, 200}};
  const auto sampler = ShuffledSampler::create(ranges, {.sequence_tokens = 300});
  ASSERT_FALSE(sampler.ok());
  EXPECT_EQ(sampler.error().code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(sampler.error().message(),
              testing::AllOf(HasSubstr("500 tokens"), HasSubstr("at most 300"),
                             HasSubstr("needs 301 contiguous tokens")));
  EXPECT_FALSE(ShuffledSampler::create({}, {.sequence_tokens = 1}).ok());
  EXPECT_THAT(ShuffledSampler::create(ranges, {.sequence_tokens = 0}).error().message(),
              HasSubstr("at least 1 token"));
}

TEST(ShuffledSampler, WorksOnACorpusLargerThanAnyDisk) {
  const std::uint64_t tokens = std::uint64_t{1} << 58;
  const ShuffledSampler sampler = shuffled({{0, 0, tokens}}, 1024);
  std::set<std::uint64_t> starts;
  for (std::uint64_t k = 0; k < 1000; ++k) {
    const Sample sample = sampler.at(k);
    ASSERT_LE(sample.first_token + 1025, tokens);
    starts.insert(sample.first_token);
  }
  EXPECT_EQ(starts.size(), 1000U);
  EXPECT_GT(*starts.rbegin() - *starts.begin(), tokens / 2);
}

TEST(SequentialSampler, WalksEveryWindowInOrderAndPredictsEveryTokenButTheFirst) {
  for (std::uint64_t length = 1; length <= 60; ++length) {
    const auto sampler = SequentialSampler::create(kTwoRanges, length);
    ASSERT_OK(sampler);
    std::vector<Place> expected;
    for (const TokenRange& range : kTwoRanges) {
      for (std::uint64_t first = range.begin; first + length < range.end; first += length) {
        expected.emplace_back(range.file, first, 0);
      }
    }
    ASSERT_EQ(sampler->count(), expected.size());
    for (std::uint64_t i = 0; i < expected.size(); ++i) {
      ASSERT_EQ(place(sampler->at(i)), expected[i]);
    }
  }
}

TEST(SequentialSampler, RefusesDataWithoutAWindow) {
  const std::vector<TokenRange> ranges = {{0, 0, 16}};
  EXPECT_THAT(SequentialSampler::create(ranges, 16).error().message(), HasSubstr("needs 17"));
  EXPECT_OK(SequentialSampler::create(ranges, 15));
}

}  // namespace
}  // namespace sluice::data
