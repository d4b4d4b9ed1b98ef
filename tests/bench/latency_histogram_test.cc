#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "bench/closed_loop.h"

namespace sluice::bench {
namespace {

// The oracle: the value at the rank in the sorted list.
std::int64_t exact(std::vector<std::int64_t> values, double percent) {
  std::sort(values.begin(), values.end());
  const auto count = static_cast<double>(values.size());
  std::size_t rank = 1;
  while (static_cast<double>(rank) * 100.0 < percent * count * (1 - 1e-12)) ++rank;
  return values[rank - 1];
}

void expect_close(const LatencyHistogram& histogram, const std::vector<std::int64_t>& values) {
  for (const double percent :
       {0.001, 1.0, 10.0, 25.0, 50.0, 75.0, 90.0, 99.0, 99.9, 99.99, 100.0}) {
    SCOPED_TRACE("p" + std::to_string(percent));
    const std::int64_t expected = exact(values, percent);
    const std::int64_t got = histogram.percentile_ns(percent);
    EXPECT_GE(got, expected);  // rounded up, never down
    EXPECT_LE(static_cast<double>(got), static_cast<double>(expected) * (1 + 1.0 / 64));
  }
}

TEST(LatencyHistogram, IsWithinASixtyFourthOfTheSortedValues) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    std::lognormal_distribution<double> times(4.0 + static_cast<double>(seed), 2.0);
    LatencyHistogram histogram;
    std::vector<std::int64_t> values;
    const std::size_t count = 1 + random() % 5000;
    for (std::size_t i = 0; i < count; ++i) {
      values.push_back(static_cast<std::int64_t>(std::min(times(random), 4e18)));
      histogram.record(values.back());
    }
    EXPECT_EQ(histogram.percentile_ns(100), *std::max_element(values.begin(), values.end()));
    expect_close(histogram, values);
  }
}

TEST(LatencyHistogram, IsExactForSmallValues) {
  LatencyHistogram histogram;
  for (int i = 0; i <= 127; ++i) histogram.record(i);
  for (int i = 1; i <= 128; ++i) {
    EXPECT_EQ(histogram.percentile_ns(i * 100.0 / 128), i - 1);
  }
}

TEST(LatencyHistogram, HoldsAtEveryPowerOfTwoAndItsNeighbours) {
  for (int bit = 0; bit < 63; ++bit) {
    for (const std::int64_t step : {-1, 0, 1}) {
      const std::int64_t value = (std::int64_t{1} << bit) + step;
      LatencyHistogram histogram;
      histogram.record(value);
      histogram.record(std::numeric_limits<std::int64_t>::max());
      const std::int64_t got = histogram.percentile_ns(50);
      EXPECT_GE(got, value);
      EXPECT_LE(got - value, value / 64);
    }
  }
}

TEST(LatencyHistogram, TakesTheLargestAndNegativeValues) {
  LatencyHistogram histogram;
  EXPECT_EQ(histogram.percentile_ns(50), 0);
  histogram.record(-5);  // clocks may step back
  EXPECT_EQ(histogram.percentile_ns(100), 0);
  histogram.record(std::numeric_limits<std::int64_t>::max());
  histogram.record(std::numeric_limits<std::int64_t>::max());
  EXPECT_EQ(histogram.percentile_ns(99), std::numeric_limits<std::int64_t>::max());
}

// percent * count / 100 is not exact in a double; the rank must not slip to the next record.
TEST(LatencyHistogram, DoesNotSlipByARankWhenThePercentageIsARoundOne) {
  for (int count = 1; count <= 2000; ++count) {
    LatencyHistogram histogram;
    const int tail = count / 1000;  // 0.1% of them, rounded down, take 100
    for (int i = 0; i < count - tail; ++i) histogram.record(1);
    for (int i = 0; i < tail; ++i) histogram.record(100);
    if (count % 1000 == 0) {
      EXPECT_EQ(histogram.percentile_ns(99.9), 1) << count;
    }
  }
  for (const int count : {7, 10, 30, 50, 70, 100, 300, 700, 900}) {
    for (int below = 1; below < count; ++below) {
      LatencyHistogram histogram;
      for (int i = 0; i < count; ++i) histogram.record(i < below ? 1 : 100);
      EXPECT_EQ(histogram.percentile_ns(below * 100.0 / count), 1) << below << " of " << count;
    }
  }
}

TEST(LatencyHistogram, MergesToWhatOneWouldHaveCounted) {
  const std::uint64_t seed = 9;
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  LatencyHistogram whole;
  LatencyHistogram parts[3];
  std::vector<std::int64_t> values;
  for (int i = 0; i < 3000; ++i) {
    const auto value = static_cast<std::int64_t>(random() % (1ULL << (random() % 40)));
    values.push_back(value);
    whole.record(value);
    parts[i % 3].record(value);
  }
  LatencyHistogram merged;
  for (const auto& part : parts) merged.merge(part);
  for (double percent = 0.5; percent <= 100; percent += 0.5) {
    EXPECT_EQ(merged.percentile_ns(percent), whole.percentile_ns(percent));
  }
  expect_close(merged, values);
}

}  // namespace
}  // namespace sluice::bench
