#include "tools/report/step_series.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <random>

namespace sluice::report {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

TEST(StepSeries, KeepsShortRunsAsTheyAre) {
  StepSeries series(2, 10);
  for (int step = 1; step <= 9; ++step)
    series.add(step, std::vector<double>{0.5 * step, step == 3 ? kNan : 1.0});
  ASSERT_EQ(series.width(), 1);
  ASSERT_EQ(series.buckets().size(), 9U);
  for (int step = 1; step <= 9; ++step) {
    const StepSeries::Bucket& bucket = series.buckets()[static_cast<std::size_t>(step - 1)];
    EXPECT_EQ(bucket.last_step, step);
    EXPECT_EQ(bucket.cells[0].mean(), 0.5 * step);
    EXPECT_EQ(bucket.cells[1].count, step == 3 ? 0 : 1);
  }
}

// Compared with a map of all values, for any order of steps and any number of doublings.
TEST(StepSeries, KeepsLeastMostMeanAndCountOfEveryStepItTook) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE(seed);
  std::mt19937 draw(seed);
  for (int round = 0; round < 30; ++round) {
    const auto most = 1 + static_cast<std::size_t>(draw() % 40);
    const std::int64_t range = 1 + static_cast<std::int64_t>(draw() % 3000);
    StepSeries series(1, most);
    std::multimap<std::int64_t, double> all;
    for (int i = 0; i < 1000; ++i) {
      const auto step = round % 2 == 0 ? i : static_cast<std::int64_t>(draw()) % range;
      const double value = std::ldexp(static_cast<double>(draw() % 4096), -7);  // sums are exact
      series.add(step, std::vector<double>{value});
      all.emplace(step, value);
    }
    ASSERT_LE(series.buckets().size(), most);
    std::int64_t lines = 0;
    for (const StepSeries::Bucket& bucket : series.buckets()) {
      const std::int64_t begin = bucket.index * series.width();
      const auto first = all.lower_bound(begin);
      const auto last = all.lower_bound(begin + series.width());
      ASSERT_NE(first, last);
      StepSeries::Cell expected;
      for (auto it = first; it != last; ++it) expected.add(it->second);
      EXPECT_EQ(bucket.cells[0].least, expected.least);
      EXPECT_EQ(bucket.cells[0].most, expected.most);
      EXPECT_EQ(bucket.cells[0].sum, expected.sum);
      EXPECT_EQ(bucket.lines, expected.count);
      EXPECT_EQ(bucket.first_step, first->first);
      EXPECT_EQ(bucket.last_step, std::prev(last)->first);
      lines += bucket.lines;
    }
    EXPECT_EQ(lines, 1000);
  }
}

TEST(StepSeries, KeepsASinglePeakAmongAHundredThousandSteps) {
  StepSeries series(1, 500);
  for (int step = 1; step <= 100000; ++step)
    series.add(step, std::vector<double>{step == 61803 ? 99.0 : 1.0});
  const auto& buckets = series.buckets();
  EXPECT_LE(buckets.size(), 500U);
  EXPECT_GE(buckets.size(), 250U);
  EXPECT_EQ(std::count_if(buckets.begin(), buckets.end(),
                          [](const auto& it) { return it.cells[0].most == 99.0; }),
            1);
}

TEST(StepSeries, TakesStepsThatAreFarApart) {
  StepSeries series(1, 2);
  for (const std::int64_t step : {std::int64_t{1} << 53, std::int64_t{0}, std::int64_t{7}})
    series.add(step, std::vector<double>{1.0});
  EXPECT_LE(series.buckets().size(), 2U);
}

}  // namespace
}  // namespace sluice::report
