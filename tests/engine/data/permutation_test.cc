#include "engine/data/permutation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <vector>

namespace sluice::data {
namespace {

std::vector<std::uint64_t> order(std::uint64_t size, std::uint64_t seed, std::uint64_t stream) {
  const Permutation permutation(size, seed, stream);
  std::vector<std::uint64_t> values;
  for (std::uint64_t i = 0; i < size; ++i) values.push_back(permutation.at(i));
  return values;
}

TEST(Permutation, VisitsEveryNumberOnceForEverySizeUpTo2000) {
  for (std::uint64_t size = 1; size <= 2000; ++size) {
    std::vector<bool> seen(size, false);
    for (const std::uint64_t value : order(size, size * 31, size % 5)) {
      ASSERT_LT(value, size);
      ASSERT_FALSE(seen[value]) << value << " twice among " << size;
      seen[value] = true;
    }
  }
}

TEST(Permutation, StaysBelowLargeSizesAndRepeatsNothing) {
  for (const std::uint64_t size : {(std::uint64_t{1} << 32) - 1, (std::uint64_t{1} << 32) + 1,
                                   std::uint64_t{1000000007} * 977, std::uint64_t{1} << 62}) {
    const Permutation permutation(size, 5, 9);
    std::set<std::uint64_t> seen;
    const std::uint64_t step = size / 10007;
    for (std::uint64_t i = 0; i < 10000; ++i) {
      for (const std::uint64_t index : {i, i * step, size - 1 - i}) {
        const std::uint64_t value = permutation.at(index);
        ASSERT_LT(value, size);
        seen.insert(value);
      }
    }
    EXPECT_EQ(seen.size(), 30000U - 1U) << size;  // index 0 was queried twice
  }
}

TEST(LongPermutation, VisitsEveryNumberOnceAtPowersOfTwoAndAround) {
  for (int bits = 11; bits <= 24; ++bits) {
    for (const int offset : {-1, 0, 1}) {
      const std::uint64_t size = (std::uint64_t{1} << bits) +
                                 static_cast<std::uint64_t>(static_cast<std::int64_t>(offset));
      const Permutation permutation(size, 77, static_cast<std::uint64_t>(bits));
      std::vector<bool> seen(size, false);
      for (std::uint64_t i = 0; i < size; ++i) {
        const std::uint64_t value = permutation.at(i);
        ASSERT_LT(value, size);
        ASSERT_FALSE(seen[value]);
        seen[value] = true;
      }
    }
  }
}

// The order defines what a checkpoint's position means. The values were computed by an independent
// implementation in Python; a change that alters them breaks every training in progress.
TEST(Permutation, KeepsItsOrderForEver) {
  EXPECT_THAT(order(10, 1, 0), testing::ElementsAre(5, 6, 7, 0, 9, 4, 2, 1, 3, 8));
  const Permutation large(1000000007, 42, 3);
  EXPECT_EQ(large.at(0), 630679846U);
  EXPECT_EQ(large.at(1), 288530865U);
  EXPECT_EQ(large.at(1000000006), 216797044U);
}

TEST(Permutation, DiffersFromSeedToSeedAndFromStreamToStream) {
  std::set<std::vector<std::uint64_t>> orders;
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    for (std::uint64_t stream = 0; stream < 30; ++stream) orders.insert(order(100, seed, stream));
  }
  EXPECT_EQ(orders.size(), 900U);
}

// All 120 orders of five, over 12,000 keys: chi-square with 119 degrees of freedom is below 190 in
// all but 4 of 100,000 cases. The keys are fixed, so the test cannot fail by bad luck.
TEST(Permutation, ReachesEveryOrderOfFiveAboutEquallyOften) {
  std::map<std::vector<std::uint64_t>, int> count;
  constexpr int kKeys = 12000;
  for (std::uint64_t seed = 0; seed < kKeys; ++seed) ++count[order(5, seed, 1)];
  EXPECT_EQ(count.size(), 120U);
  double chi_square = 0;
  for (const auto& [unused, times] : count) chi_square += (times - 100.0) * (times - 100.0) / 100.0;
  EXPECT_LT(chi_square, 190);
  EXPECT_GT(chi_square, 65);  // and not more even than chance
}

// Counts where each of 1,000 numbers goes, over 4,000 keys, in ten by ten boxes.
TEST(Permutation, SendsEachTenthToEachTenthAboutEquallyOften) {
  std::vector<std::uint64_t> boxes(100, 0);
  constexpr std::uint64_t kKeys = 4000;
  for (std::uint64_t seed = 0; seed < kKeys; ++seed) {
    const Permutation permutation(1000, seed, 0);
    for (std::uint64_t i = 0; i < 1000; i += 37) {  // few per tenth, so that they are independent
      ++boxes[i / 100 * 10 + permutation.at(i) / 100];
    }
  }
  double chi_square = 0;
  for (std::uint64_t row = 0; row < 10; ++row) {
    std::uint64_t total = 0;
    for (std::uint64_t column = 0; column < 10; ++column) total += boxes[row * 10 + column];
    const double expected = static_cast<double>(total) / 10;
    for (std::uint64_t column = 0; column < 10; ++column) {
      const double off = static_cast<double>(boxes[row * 10 + column]) - expected;
      chi_square += off * off / expected;
    }
  }
  EXPECT_LT(chi_square, 150);  // 90 degrees of freedom
  EXPECT_GT(chi_square, 45);
}

TEST(Permutation, LeavesNeighboursUncorrelated) {
  constexpr std::uint64_t kSize = 20000;
  const Permutation permutation(kSize, 3, 4);
  std::uint64_t ascents = 0;
  for (std::uint64_t i = 0; i + 1 < kSize; ++i) {
    ascents += permutation.at(i) < permutation.at(i + 1) ? 1U : 0U;
  }
  // Ascents of a random order: mean (n - 1) / 2, standard deviation sqrt((n + 1) / 12) = 41.
  EXPECT_NEAR(static_cast<double>(ascents), (kSize - 1) / 2.0, 5 * 41.0);
}

}  // namespace
}  // namespace sluice::data
