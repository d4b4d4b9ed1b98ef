// The drives' wear in plans of whole runs, and bounds on it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "engine/plan/report/plan_report.h"
#include "engine/plan/run_plan.h"
#include "tests/engine/plan/plan_under_test.h"

namespace sluice::engine {
namespace {

using testing::HasSubstr;
using testing::Not;
using Change = offload::FitHint::Change;
using offload::FitHint;

// The state of this model of 450M parameters passes through the drive of the next machine.
std::vector<std::string> streamed(const std::vector<std::string>& overrides = {}) {
  return shape(12, 1600, 25) + overrides;
}

DescribedMachine little_ram() {
  DescribedMachine machine = described(4);
  machine.cpu_gib = 4.5;
  machine.drive_tbw = 100;
  return machine;
}

double tb_per_day(const RunPlan& plan) {
  const offload::StepPrediction& step = plan.placement.prediction;
  return 1e-12 * step.nvme_write_bytes * plan.ranks.local_world / step.step_s * 86400;
}

std::string bound(double tb) { return "budget.nvme_tb_per_day=" + std::to_string(tb); }

bool has_hint(const RunPlan& plan, Change change) {
  const auto& hints = plan.hints;
  return std::any_of(hints.begin(), hints.end(),
                     [&](const FitHint& it) { return it.change == change; });
}

TEST(RunPlan, SaysHowLongTheDrivesLast) {
  const config::Config config = planned_config(streamed({"run.steps=100000"}));
  RunPlan plan = planned(config, {.machine = little_ram()});
  const double tb = tb_per_day(plan);
  ASSERT_GT(tb, 10);
  const nlohmann::json drives = nlohmann::json::parse(plan_json(config, plan, {}))["drives"];
  EXPECT_NEAR(drives["write_tb_per_day"], tb, 1e-9 * tb);
  EXPECT_NEAR(drives["days_of_training"], 100 / tb, 1e-6);
  EXPECT_EQ(drives["rated_tb"], 100);
  EXPECT_EQ(drives["rated_tb_is_assumed"], false);
  const auto said = [&](double tbw) {
    plan.drive_tbw = tbw;
    return format_plan(config, plan, {});
  };
  EXPECT_THAT(said(100), testing::ContainsRegex("rated endurance .100 TB. lasts [0-9].[0-9] days"));
  EXPECT_THAT(said(400 * tb), HasSubstr("lasts 400 days of training at this rate"));
  EXPECT_THAT(said(7 * 365.25 * tb), HasSubstr("lasts 7.0 years of training at this rate"));
  plan.drive_tbw_assumed = true;
  EXPECT_THAT(said(600), HasSubstr("(600 TB, assumed)"));
  // A run that writes much to drives that do not last is warned of.
  plan.drive_tbw = 59 * tb;
  EXPECT_THAT(wear_warning(config, plan), HasSubstr("uses it up in 59 days"));
  EXPECT_EQ(wear_warning(planned_config(streamed({"run.steps=2"})), plan), "");
  plan.drive_tbw = 61 * tb;
  EXPECT_EQ(wear_warning(config, plan), "");
}

TEST(RunPlan, SaysWhatWouldWriteLess) {
  const config::Config config = planned_config(streamed({"run.steps=100000"}));
  const RunPlan plan = planned(config, {.machine = little_ram(), .with_what_ifs = true});
  for (const auto& [change, override] :
       {std::pair{offload::WhatIf::Change::kTwiceAccumulation, "gradient_accumulation_steps=2"},
        std::pair{offload::WhatIf::Change::kBf16Moments, "optimizer.params.moments=bf16"}}) {
    const auto found = std::find_if(plan.what_if.begin(), plan.what_if.end(),
                                    [&](const auto& it) { return it.change == change; });
    ASSERT_NE(found, plan.what_if.end()) << override;
    const RunPlan changed =
        planned(planned_config(streamed({override})), {.machine = little_ram()});
    EXPECT_EQ(found->step_s, changed.placement.prediction.step_s);
    EXPECT_EQ(found->nvme_write_bytes, changed.placement.prediction.nvme_write_bytes);
    EXPECT_NEAR(found->tokens_per_s_ratio,
                static_cast<double>(changed.tokens_per_step) / plan.tokens_per_step *
                    plan.placement.prediction.step_s / changed.placement.prediction.step_s,
                1e-9);
    EXPECT_LT(tb_per_day(changed), 0.9 * tb_per_day(plan));
  }
  EXPECT_THAT(what_if_table(plan), HasSubstr("TB written per day"));
  EXPECT_THAT(what_if_table(plan), HasSubstr("twice the gradient accumulation"));
  EXPECT_THAT(what_if_json(plan), HasSubstr("nvme_write_tb_per_day"));
  EXPECT_THAT(wear_warning(config, plan), HasSubstr(" with optimizer.params.moments bf16"));
  const RunPlan dry =
      planned(planned_config(streamed()), {.machine = described(), .with_what_ifs = true});
  ASSERT_EQ(dry.placement.prediction.nvme_write_bytes, 0);
  EXPECT_THAT(what_if_table(dry), Not(HasSubstr("TB written per day")));
  EXPECT_EQ(wear_warning(config, dry), "");
}

TEST(RunPlan, RefusesToWriteMoreThanItsBound) {
  const double free_tb = tb_per_day(planned(planned_config(streamed()), {.machine = little_ram()}));
  for (const double share : {0.5, 0.1}) {
    const std::vector<std::string> file = streamed({bound(share * free_tb)});
    const config::Config config = planned_config(file);
    const RunPlan plan = planned(config, {.machine = little_ram()});
    ASSERT_FALSE(plan.placement.fits);
    EXPECT_TRUE(plan.placement.writes_too_much);
    EXPECT_EQ(plan.placement.missing.total(), 0U);
    EXPECT_GT(tb_per_day(plan), share * free_tb);
    EXPECT_LE(tb_per_day(plan), free_tb * (1 + 1e-6));
    EXPECT_TRUE(has_hint(plan, Change::kMoreAccumulation));
    EXPECT_TRUE(has_hint(plan, Change::kMoreCpu));
    expect_hints_to_be_enough(plan, little_ram(), file);
    const std::string text = does_not_fit(config, plan);
    EXPECT_THAT(text, testing::ContainsRegex(
                          "would write at least [0-9.]+ TB to the drives per day, and "
                          "budget.nvme_tb_per_day allows [0-9.]+. It would write no more than that "
                          "with gradient_accumulation_steps [0-9]+, "));
    EXPECT_THAT(text, HasSubstr("a machine with "));
    // The named bound is enough.
    const double named = std::ceil(tb_per_day(plan));
    EXPECT_THAT(text, HasSubstr("budget.nvme_tb_per_day to " + std::to_string(std::lround(named))));
    EXPECT_TRUE(planned(planned_config(streamed({bound(named)})), {.machine = little_ram()})
                    .placement.fits);
  }
}

// No length of a step is enough, so none is searched for.
TEST(RunPlan, AnswersABoundThatNoStepCanKeep) {
  const RunPlan plan = planned(planned_config(streamed({bound(0)})), {.machine = little_ram()});
  EXPECT_TRUE(plan.placement.writes_too_much);
  EXPECT_FALSE(has_hint(plan, Change::kMoreAccumulation));
}

// Without a bound this plan keeps inputs on the drive, because that is faster.
TEST(RunPlan, ChoosesAPlacementThatWritesLessIfABoundAsksForIt) {
  const std::vector<std::string> file = streamed({"gradient_accumulation_steps=16"});
  const RunPlan plan = planned(planned_config(file), {.machine = little_ram()});
  ASSERT_TRUE(plan.placement.fits);
  const double allowed = 0.9 * tb_per_day(plan);
  const RunPlan less = planned(planned_config(file + std::vector<std::string>{bound(allowed)}),
                               {.machine = little_ram()});
  ASSERT_TRUE(less.placement.fits) << tb_per_day(less) << " of " << allowed;
  EXPECT_LE(tb_per_day(less), allowed);
  EXPECT_GE(less.placement.prediction.step_s, plan.placement.prediction.step_s);
  const RunPlan roomy =
      planned(planned_config(file + std::vector<std::string>{bound(2 * tb_per_day(plan))}),
              {.machine = little_ram()});
  EXPECT_EQ(roomy.placement.prediction.step_s, plan.placement.prediction.step_s);
}

// The bound is a host's, whose ranks write together.
TEST(RunPlan, CountsWhatAllRanksOfAHostWrite) {
  const offload::Topology two{.world = 2, .local_world = 2};
  DescribedMachine machine = little_ram();
  machine.cpu_gib = 6.5;
  const auto plan_of = [&](const std::vector<std::string>& file) {
    return planned(planned_config(streamed(file), 2), {.machine = machine, .ranks = two});
  };
  const RunPlan plan = plan_of({});
  ASSERT_TRUE(plan.placement.fits);
  const double tb = tb_per_day(plan);
  ASSERT_GT(tb, 1);
  EXPECT_TRUE(plan_of({bound(1.01 * tb)}).placement.fits);
  EXPECT_TRUE(plan_of({bound(0.51 * tb)}).placement.writes_too_much);
  EXPECT_THAT(format_plan(planned_config(streamed(), 2), plan, {}),
              HasSubstr(" TB written per day by the 2 ranks of a host: "));
}

}  // namespace
}  // namespace sluice::engine
