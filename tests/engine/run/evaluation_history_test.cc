// When a run stops early, compared with transformers' Trainer and EarlyStoppingCallback.
#include "engine/run/evaluation_history.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <optional>
#include <random>
#include <vector>

namespace sluice::engine {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Ended {
  std::size_t evaluations = 0;  // until the run stopped, or all
  std::vector<std::size_t> lowest;
};

Ended run(const std::vector<double>& losses, const config::EarlyStopping& rules) {
  EvaluationHistory history(rules, {});
  Ended ended;
  for (const double loss : losses) {
    if (history.add(static_cast<std::int64_t>(ended.evaluations), loss))
      ended.lowest.push_back(ended.evaluations);
    ++ended.evaluations;
    if (history.stops()) break;
  }
  return ended;
}

// As in transformers: EarlyStoppingCallback.check_metric_value() sees the best metric before
// Trainer._determine_best_metric() updates it. For finite losses.
Ended run_transformers(const std::vector<double>& losses, const config::EarlyStopping& rules) {
  std::optional<double> best_metric;
  std::int64_t counter = 0;
  Ended ended;
  for (const double metric : losses) {
    if (!best_metric ||
        (metric < *best_metric && std::abs(metric - *best_metric) > rules.min_delta))
      counter = 0;
    else
      ++counter;
    if (!best_metric || metric < *best_metric) {
      best_metric = metric;
      ended.lowest.push_back(ended.evaluations);
    }
    ++ended.evaluations;
    if (rules.patience > 0 && counter >= rules.patience) break;
  }
  return ended;
}

TEST(EvaluationHistory, StopsWhereTransformersDoes) {
  std::mt19937 random(7);
  std::uniform_int_distribution<int> level(0, 12);
  for (int round = 0; round < 2000; ++round) {
    std::vector<double> losses(20);
    for (double& loss : losses) loss = 0.25 * level(random);
    const config::EarlyStopping rules{.patience = round % 5, .min_delta = 0.25 * (round % 3)};
    const Ended ours = run(losses, rules);
    const Ended theirs = run_transformers(losses, rules);
    ASSERT_EQ(ours.evaluations, theirs.evaluations) << "round " << round;
    ASSERT_EQ(ours.lowest, theirs.lowest) << "round " << round;
  }
}

TEST(EvaluationHistory, TakesNoLossThatIsNotFiniteForAnImprovement) {
  EXPECT_EQ(run({kNaN, kInfinity, -kInfinity}, {.patience = 3}).evaluations, 3U);
  const Ended ended = run({kNaN, 2, kNaN, 1, kNaN, kNaN, 0.5}, {.patience = 2});
  EXPECT_EQ(ended.evaluations, 6U);
  EXPECT_EQ(ended.lowest, (std::vector<std::size_t>{1, 3}));
}

TEST(EvaluationHistory, ContinuesWhereItWasStored) {
  const std::vector<double> losses = {3, 2, 2.5, kNaN, 2.25, 2.125};
  const config::EarlyStopping rules{.patience = 4};
  for (std::size_t cut = 0; cut <= losses.size(); ++cut) {
    EvaluationHistory before(rules, {});
    for (std::size_t i = 0; i < cut; ++i) before.add(static_cast<std::int64_t>(i), losses[i]);
    EvaluationHistory after(rules, before.made());
    for (std::size_t i = cut; i < losses.size(); ++i) {
      EXPECT_FALSE(after.stops());
      after.add(static_cast<std::int64_t>(i), losses[i]);
    }
    EXPECT_TRUE(after.stops());
    EXPECT_EQ(after.made(),
              (StoredEvaluations{.lowest_loss = 2, .lowest_step = 1, .without_improvement = 4}));
  }
}

}  // namespace
}  // namespace sluice::engine
