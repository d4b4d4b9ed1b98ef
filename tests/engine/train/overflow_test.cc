// What becomes of a step whose gradients overflow, and of a run whose numbers go wrong.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/engine/train/run_under_test.h"

namespace sluice::engine {
namespace {

using testing::HasSubstr;

const std::vector<std::string> kFp16 = {"bf16.enabled=false", "fp16.enabled=true",
                                        "fp16.hysteresis=1"};

std::vector<std::string> with(std::vector<std::string> base, const std::string& more) {
  base.push_back(more);
  return base;
}

TEST(Overflow, SkipsAndHalvesUntilTheScaleFitsThenLearns) {
  const SmallRun small(with(kFp16, "fp16.initial_scale_power=32"));
  const auto run = small.start();
  const std::vector<float> before = masters_of(*run);
  double scale = std::ldexp(1.0, 32);
  int skipped = 0;
  StepOutcome outcome = run->step();
  for (; outcome.skipped; outcome = run->step()) {
    EXPECT_EQ(outcome.loss_scale, scale);
    scale /= 2;
    ++skipped;
    EXPECT_EQ(masters_of(*run), before) << "a skipped step changed a weight";
    ASSERT_LT(skipped, 40);
  }
  EXPECT_GT(skipped, 0);
  EXPECT_EQ(run->trainer().state().global_step, skipped + 1);
  EXPECT_EQ(run->trainer().state().applied_step, 1);
  const double first_loss = outcome.loss;
  for (int i = 0; i < 25; ++i) outcome = run->step();
  EXPECT_LT(outcome.loss, first_loss);
}

// Skipping depends on nothing but the numbers: a run that starts at the scale that fits ends with
// the weights of one that had to find it, once its step counter and data are where the other's
// were.
TEST(Overflow, CountsStepsButNotUpdates) {
  const SmallRun small(with(kFp16, "fp16.initial_scale_power=30"));
  const auto run = small.start();
  int skipped = 0;
  for (int i = 0; i < 20; ++i) skipped += run->step().skipped ? 1 : 0;
  ASSERT_GT(skipped, 0);
  EXPECT_EQ(run->trainer().state().global_step, 20);
  EXPECT_EQ(run->trainer().state().applied_step, 20 - skipped);
  EXPECT_EQ(run->trainer().state().samples_drawn, 20U * 4U);
}

TEST(Overflow, EndsWithTheUnitsNameWhenTheScaleReachesItsFloor) {
  std::vector<std::string> overrides = with(kFp16, "fp16.initial_scale_power=32");
  overrides.push_back("fp16.min_loss_scale=2147483648");
  const SmallRun small(overrides);
  const auto run = small.start();
  try {
    for (int i = 0; i < 10; ++i) run->step();
    FAIL() << "the run went on";
  } catch (const TrainError& error) {
    EXPECT_THAT(error.what(), HasSubstr("the first unit with such a gradient is "));
  }
}

TEST(Overflow, EndsARunInBf16ThatDiverges) {
  const SmallRun small({"optimizer.params.lr=1e30", "scheduler.type=null", "gradient_clipping=0"});
  std::unique_ptr<TrainingRun> run;
  try {
    run = small.start();
    for (int i = 0; i < 10; ++i) run->step();
    FAIL() << "the run went on";
  } catch (const TrainError& error) {
    EXPECT_THAT(error.what(), HasSubstr("not finite from unit"));
  } catch (const std::runtime_error& error) {
    FAIL() << error.what();
  }
}

}  // namespace
}  // namespace sluice::engine
