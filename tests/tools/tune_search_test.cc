#include "tools/tune/tune_search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <random>
#include <set>

namespace sluice::tools {
namespace {

using ::testing::HasSubstr;

std::vector<Dimension> grid(const std::vector<int>& sizes, const Point& start,
                            bool ordered = true) {
  std::vector<Dimension> dimensions;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    Dimension dimension{.name = "d" + std::to_string(i), .start = start[i], .ordered = ordered};
    for (int choice = 0; choice < sizes[i]; ++choice)
      dimension.choices.push_back({.label = std::to_string(choice), .keys = {}});
    dimensions.push_back(std::move(dimension));
  }
  return dimensions;
}

// A machine that is a function. Only trials take time.
class FakeSubject : public TuneSubject {
 public:
  using Cost = std::function<double(const Point&)>;
  explicit FakeSubject(Cost cost) : cost_(std::move(cost)) {}

  Cost predicted;                                    // none: unknown
  std::function<std::string(const Point&)> refuses;  // refused by the plan
  std::function<std::string(const Point&)> fails;    // fails when it runs
  std::function<std::string(const Point&)> run_id;
  std::function<double(const Point&)> drift;  // factor of the n-th measurement of a point
  double seconds = 1e9;
  double trial_s = 1;
  double error = 0;  // error of the step time
  int interrupted_after = 1 << 30;
  std::vector<Point> measured;

  Result<std::vector<Forecast>> forecast(const std::vector<Point>& points) override {
    std::vector<Forecast> forecasts;
    for (const Point& point : points)
      forecasts.push_back({.step_s = predicted ? predicted(point) : 0,
                           .refusal = refuses ? refuses(point) : "",
                           .run_id = run_id ? run_id(point) : ""});
    return forecasts;
  }
  Result<Trial> measure(const Point& point, double /*best_step_s*/) override {
    if (static_cast<int>(measured.size()) >= interrupted_after)
      return Error(ErrorCode::kCancelled, "interrupted");
    measured.push_back(point);
    seconds -= trial_s;
    if (fails && !fails(point).empty()) return Trial{.failure = fails(point), .took_s = trial_s};
    const double step_s = cost_(point) * (drift ? drift(point) : 1);
    return Trial{.failure = {}, .step_s = step_s, .error_s = error * step_s, .took_s = trial_s};
  }
  double seconds_left() override { return seconds; }

 private:
  Cost cost_;
};

TuneResult search(const std::vector<Dimension>& dimensions, FakeSubject& subject,
                  TuneSearch::Options options = {}) {
  auto result = TuneSearch(dimensions, subject, std::move(options)).run();
  EXPECT_TRUE(result.ok());
  return *std::move(result);
}

const Point& best_of(const TuneResult& result) { return result.rows.at(result.best.value()).point; }

// A valley with its lowest point at `lowest`.
FakeSubject::Cost valley(const Point& lowest) {
  return [lowest](const Point& point) {
    double cost = 1;
    for (std::size_t i = 0; i < point.size(); ++i) cost += 0.3 * std::abs(point[i] - lowest[i]);
    return cost;
  };
}

TEST(TuneSearch, FindsTheLowestPointOfASeparableCostInAFewTrials) {
  constexpr unsigned kSeed = 7;
  std::mt19937 random(kSeed);
  SCOPED_TRACE(kSeed);
  std::size_t most = 0;
  for (int round = 0; round < 200; ++round) {
    const std::vector<int> sizes = {5, 3, 7, 4, 6};
    Point lowest;
    Point start;
    for (const int size : sizes) {
      lowest.push_back(static_cast<int>(random() % static_cast<unsigned>(size)));
      start.push_back(static_cast<int>(random() % static_cast<unsigned>(size)));
    }
    FakeSubject subject(valley(lowest));
    const auto dimensions = grid(sizes, start);
    const TuneResult result = search(dimensions, subject);
    EXPECT_EQ(best_of(result), lowest);
    EXPECT_EQ(result.end, TuneEnd::kNothingFaster);
    // There are 2520 points. The search walks to each at most once, and tries its neighbours once
    // more.
    most = std::max(most, subject.measured.size());
  }
  EXPECT_LE(most, 40U);
}

TEST(TuneSearch, FindsTheLowestPointWhereTwoDimensionsLeanOnEachOther) {
  // A larger first choice needs a smaller second one, like a micro-batch and recomputing.
  const auto cost = [](const Point& point) {
    const double x = point[0];
    const double y = point[1];
    return 1 + 0.1 * (x - 4) * (x - 4) + 0.1 * (y - 1) * (y - 1) + 0.03 * (x - 4) * (y - 1);
  };
  for (int x = 0; x < 6; ++x) {
    for (int y = 0; y < 6; ++y) {
      FakeSubject subject(cost);
      const auto dimensions = grid({6, 6}, {x, y});
      EXPECT_EQ(best_of(search(dimensions, subject)), (Point{4, 1})) << x << " " << y;
    }
  }
}

TEST(TuneSearch, TriesEveryChoiceOfADimensionWithoutOrder) {
  FakeSubject subject([](const Point& point) { return point[0] == 3 ? 1.0 : 2.0; });
  const auto dimensions = grid({5}, {0}, /*ordered=*/false);
  EXPECT_EQ(best_of(search(dimensions, subject)), (Point{3}));
}

TEST(TuneSearch, MeasuresNothingTwiceButStartAndBestAtTheEndByTurns) {
  FakeSubject subject(valley({3, 2}));
  const auto dimensions = grid({5, 5}, {0, 0});
  const TuneResult result = search(dimensions, subject);
  const std::size_t trials = subject.measured.size() - 4;
  const std::set<Point> different(subject.measured.begin(),
                                  subject.measured.begin() + static_cast<std::ptrdiff_t>(trials));
  EXPECT_EQ(different.size(), trials);
  const std::vector<Point> end(subject.measured.end() - 4, subject.measured.end());
  EXPECT_EQ(end, (std::vector<Point>{{0, 0}, {3, 2}, {0, 0}, {3, 2}}));
  ASSERT_TRUE(result.confirmation);
  EXPECT_DOUBLE_EQ(result.confirmation->gain(), 2.5);
}

TEST(TuneSearch, DoesNotComeBackToWhatWasFarFromTheBest) {
  // The second dimension improves, so there is a second pass. The first dimension has a bad choice
  // and a close one.
  FakeSubject subject([](const Point& point) {
    return std::vector<double>{1, 1.5}[static_cast<std::size_t>(point[0])] *
           std::vector<double>{1, 1.05}[static_cast<std::size_t>(point[1])] *
           std::vector<double>{2, 1}[static_cast<std::size_t>(point[2])];
  });
  const auto dimensions = grid({2, 2, 2}, {0, 0, 0});
  search(dimensions, subject, {.confirmations = 0});
  EXPECT_EQ(subject.measured,
            (std::vector<Point>{{0, 0, 0}, {1, 0, 0}, {0, 1, 0}, {0, 0, 1}, {0, 1, 1}}));
}

TEST(TuneSearch, AGainWithinTheNoiseIsNone) {
  const auto one_percent = [](const Point& point) { return 1 - 0.01 * point[0]; };
  FakeSubject quiet(one_percent);
  const auto dimensions = grid({2}, {0});
  EXPECT_EQ(search(dimensions, quiet).best, 0U);
  const auto ten_percent = [](const Point& point) { return 1 - 0.1 * point[0]; };
  FakeSubject noisy(ten_percent);
  noisy.error = 0.05;
  EXPECT_EQ(search(dimensions, noisy).best, 0U);
  noisy.error = 0.02;
  EXPECT_EQ(search(dimensions, noisy).best, 1U);
}

TEST(TuneSearch, PrunesWhatThePlanRefusesRepeatsOrPredictsToBeSlow) {
  FakeSubject subject([](const Point& point) { return 10.0 - point[0]; });
  subject.predicted = [](const Point& point) { return point[1] == 1 ? 13.5 : 10; };
  subject.refuses = [](const Point& point) {
    return point[2] == 1 ? std::string("does not fit") : "";
  };
  const auto dimensions = grid({1, 2, 2, 2}, {0, 0, 0, 0});
  subject.run_id = [](const Point& point) { return std::to_string(point[1]); };
  const TuneResult result = search(dimensions, subject);
  EXPECT_EQ(subject.measured, (std::vector<Point>{{0, 0, 0, 0}}));
  ASSERT_EQ(result.rows.size(), 4U);
  std::vector<std::string> reasons;
  for (const TuneRow& row : result.rows) reasons.push_back(row.reason);
  EXPECT_THAT(reasons,
              ::testing::UnorderedElementsAre("", HasSubstr("1.3 times as long"), "does not fit",
                                              "the same run as the start"));
}

TEST(TuneSearch, WalksOverChoicesThatChangeNothing) {
  FakeSubject subject([](const Point& point) { return point[0] >= 3 ? 1.0 : 2.0; });
  subject.run_id = [](const Point& point) {
    return point[0] >= 3 ? std::to_string(point[0]) : "a";
  };
  const auto dimensions = grid({5}, {0});
  EXPECT_EQ(best_of(search(dimensions, subject)), (Point{3}));
}

TEST(TuneSearch, TriesFirstWhatThePlanPromisesMostOf) {
  FakeSubject subject(valley({0, 0, 0}));
  subject.predicted = [](const Point& point) { return 10 - point[2]; };
  const auto dimensions = grid({2, 2, 2}, {0, 0, 0});
  search(dimensions, subject);
  EXPECT_EQ(subject.measured[1], (Point{0, 0, 1}));
}

TEST(TuneSearch, ATrialThatFailsIsARowAndTheSearchGoesOn) {
  FakeSubject subject(valley({4, 4}));
  subject.fails = [](const Point& point) {
    return point[0] == 2 ? std::string("out of memory: 1G") : "";
  };
  const auto dimensions = grid({5, 5}, {1, 1});
  const TuneResult result = search(dimensions, subject);
  EXPECT_EQ(best_of(result), (Point{1, 4}));
  int failed = 0;
  for (const TuneRow& row : result.rows) {
    if (row.verdict != Verdict::kFailed) continue;
    ++failed;
    EXPECT_EQ(row.reason, "out of memory: 1G");
  }
  EXPECT_GE(failed, 1);
}

TEST(TuneSearch, AStartThatDoesNotRunIsWalkedAwayFrom) {
  const auto dimensions = grid({6, 3}, {4, 1});
  for (const bool by_plan : {false, true}) {
    FakeSubject subject(valley({0, 0}));
    const auto too_large = [](const Point& point) {
      return point[0] > 1 ? std::string("out of memory") : "";
    };
    (by_plan ? subject.refuses : subject.fails) = too_large;
    const TuneResult result = search(dimensions, subject);
    EXPECT_EQ(best_of(result), (Point{0, 0}));
    EXPECT_EQ(result.start().verdict, Verdict::kFailed);
    EXPECT_FALSE(result.confirmation);
  }
}

TEST(TuneSearch, ABestThatDoesNotRunAgainIsSaid) {
  FakeSubject subject(valley({3}));
  subject.fails = [&](const Point& point) {
    const auto times = std::count(subject.measured.begin(), subject.measured.end(), point);
    return std::string(point == Point{3} && times > 1 ? "out of memory" : "");
  };
  const auto dimensions = grid({4}, {0});
  const TuneResult result = search(dimensions, subject);
  EXPECT_EQ(best_of(result), (Point{3}));
  EXPECT_EQ(result.confirmation.value().failure, "out of memory");
}

TEST(TuneSearch, NothingRunsIsAResult) {
  FakeSubject subject(valley({0}));
  subject.fails = [](const Point&) { return std::string("no"); };
  const auto dimensions = grid({4}, {2});
  const TuneResult result = search(dimensions, subject);
  EXPECT_FALSE(result.best);
  EXPECT_EQ(result.rows.size(), 4U);
}

TEST(TuneSearch, StopsWhenTheTimeIsUsedAndKeepsSomeForTheEnd) {
  for (const double seconds : {0.5, 1.5, 8.0, 12.0, 15.0}) {
    FakeSubject subject(valley({6, 6}));
    subject.seconds = seconds;
    const auto dimensions = grid({7, 7}, {0, 0});
    const TuneResult result = search(dimensions, subject);
    EXPECT_EQ(result.end, TuneEnd::kTimeUsed) << seconds;
    EXPECT_GT(subject.seconds, -1) << seconds;  // at most the trial in progress
    if (seconds > 10) {
      EXPECT_EQ(result.confirmation.value().best_step_s.size(), 2U);
    }
  }
}

TEST(TuneSearch, StopsAfterAsManyTrialsAsAreAllowed) {
  FakeSubject subject(valley({6, 6}));
  const auto dimensions = grid({7, 7}, {0, 0});
  const TuneResult result = search(dimensions, subject, {.most_trials = 3, .confirmations = 0});
  EXPECT_EQ(result.end, TuneEnd::kTrialsUsed);
  EXPECT_EQ(subject.measured.size(), 3U);
  EXPECT_TRUE(result.best);
}

TEST(TuneSearch, AnInterruptKeepsTheBestSoFar) {
  const auto dimensions = grid({7}, {0});
  FakeSubject subject(valley({6}));
  subject.interrupted_after = 3;
  const TuneResult result = search(dimensions, subject);
  EXPECT_EQ(result.end, TuneEnd::kInterrupted);
  EXPECT_EQ(best_of(result), (Point{2}));
  FakeSubject at_once(valley({6}));
  at_once.interrupted_after = 0;
  EXPECT_TRUE(search(dimensions, at_once).rows.empty());
}

TEST(TuneSearch, TellsRowByRow) {
  FakeSubject subject(valley({2}));
  const auto dimensions = grid({4}, {0});
  std::vector<std::size_t> numbers;
  const TuneResult result =
      search(dimensions, subject,
             {.on_row = [&](const TuneRow&, std::size_t number) { numbers.push_back(number); }});
  EXPECT_EQ(numbers.size(), result.rows.size());
  EXPECT_EQ(numbers.back(), result.rows.size());
}

TEST(TuneSearch, DescribesWhereAPointDiffersFromTheStart) {
  const auto dimensions = grid({3, 3}, {1, 1});
  EXPECT_EQ(describe(dimensions, {1, 1}), "");
  EXPECT_EQ(describe(dimensions, {1, 2}), "d1 2");
  EXPECT_EQ(describe(dimensions, {0, 2}), "d0 0, d1 2");
}

}  // namespace
}  // namespace sluice::tools
