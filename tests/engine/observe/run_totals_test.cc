#include "engine/observe/run_totals.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "aio/units.h"
#include "engine/observe/text_table.h"

namespace sluice::engine {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(RunTotals, AddUpToATableInColumns) {
  RunTotals totals;
  EXPECT_EQ(totals.closing_table(), "");
  StepMetrics step;
  step.loss = 10.5;
  step.tokens_per_s = 4000;
  step.step_ms = 1000;
  step.forward_ms = 250;
  step.backward_ms = 500;
  step.update_ms = 300;
  step.update_exposed_ms = 100;
  step.nvme_read_bytes = 1'000'000'000;
  step.nvme_write_bytes = 512 * kMiB;
  step.host_rss_bytes = 3 * kGiB;
  totals.add(step);
  step.loss = 5.25;
  step.step_ms = 3000;
  step.tokens_per_s = 1333.3333333333333;
  step.skipped = true;
  step.val_loss = 6;
  step.host_rss_bytes = 2 * kGiB;
  totals.add(step);
  EXPECT_EQ(totals.closing_table(),
            "steps                 2, 1 skipped\n"
            "loss             10.5000 -> 5.2500\n"
            "validation loss             6.0000\n"
            "tokens/s                      2.0k\n"
            "\n"
            "time                             total   share   per step\n"
            "forward                          0.5 s   12.5%   250.0 ms\n"
            "backward                         1.0 s   25.0%   500.0 ms\n"
            "update, exposed                  0.2 s    5.0%   100.0 ms\n"
            "other                            2.3 s   57.5%  1150.0 ms\n"
            "all                              4.0 s  100.0%  2000.0 ms\n"
            "update, overlapped with compute  0.4 s   10.0%   200.0 ms\n"
            "\n"
            "traffic     total  per step       rate\n"
            "NVMe read   1.86G   953.67M  0.50 GB/s\n"
            "NVMe write     1G      512M  0.27 GB/s\n"
            "\n"
            "memory          peak\n"
            "host, resident    3G\n");
}

TEST(RunTotals, SayThatNothingIsLearntAtNorm0) {
  StepMetrics step;
  step.loss = 6.4;
  RunTotals totals;
  const auto add = [&](double norm, bool skipped = false) {
    step.grad_norm = norm;
    step.skipped = skipped;
    totals.add(step);
  };
  for (const double norm : {0.0, 0.0, 1.0, 0.0, 0.0}) add(norm);
  EXPECT_FALSE(totals.learns_nothing());
  add(0, /*skipped=*/true);
  EXPECT_FALSE(totals.learns_nothing());
  add(0);
  EXPECT_TRUE(totals.learns_nothing());
  EXPECT_THAT(totals.closing_table(), testing::ContainsRegex("gradient norm 0 +5 of 7 steps"));
  add(1e-9);
  EXPECT_FALSE(totals.learns_nothing());
}

// A simulated step computes no gradients.
TEST(RunTotals, SayNothingOfTheGradientsOfAPlan) {
  StepMetrics step;
  step.loss = std::nan("");
  RunTotals totals;
  for (int i = 0; i < 5; ++i) totals.add(step);
  EXPECT_FALSE(totals.learns_nothing());
  EXPECT_THAT(totals.closing_table(), Not(HasSubstr("norm")));
}

TEST(RunTotals, SayTheSpeedAndItsShareOfTheLimit) {
  StepMetrics step;
  step.step_ms = 1000;
  step.tokens_per_s = 100;
  step.tflops_per_s = 30;
  RunTotals totals;
  totals.add(step);
  step.step_ms = 3000;
  step.tflops_per_s = 10;
  totals.add(step);
  EXPECT_THAT(totals.closing_table(), testing::ContainsRegex("TFLOP/s +15\\.0\n"));
  totals.compare_with_limit(60e12);
  EXPECT_THAT(totals.closing_table(),
              testing::ContainsRegex("TFLOP/s +15\\.0 \\(25% of large matrix products\\)\n"));
}

TEST(RunTotals, SayHowBusyGpusWereOverTheTimeThatIsKnown) {
  StepMetrics step;
  step.step_ms = 1000;
  RunTotals totals;
  totals.add(step);
  EXPECT_THAT(totals.closing_table(), Not(HasSubstr("GPU busy")));
  step.gpu_utilization_percent = 90;
  totals.add(step);
  step.step_ms = 3000;
  step.gpu_utilization_percent = 50;
  totals.add(step);
  EXPECT_THAT(totals.closing_table(), testing::ContainsRegex("GPU busy +60%\n"));
}

TEST(RunTotals, CompareTheStepWithThePlan) {
  const auto totals_of = [](double planned_s, const std::vector<double>& steps_ms) {
    RunTotals totals;
    totals.compare_with_plan(planned_s);
    for (const double step_ms : steps_ms) {
      StepMetrics step;
      step.step_ms = step_ms;
      totals.add(step);
    }
    return totals;
  };
  // The first step warms up and does not count; nor does an interrupted one.
  const RunTotals good = totals_of(1, {9000, 1000, 1200, 5000, 1100});
  EXPECT_DOUBLE_EQ(good.step_over_plan().value(), 1.2);
  EXPECT_FALSE(good.far_from_plan());
  EXPECT_THAT(good.closing_table(), HasSubstr("1200.0 ms (1.20 of the plan)"));
  const RunTotals slower = totals_of(1, {1, 1500, 1500, 1500});
  EXPECT_TRUE(slower.far_from_plan());
  // For example if other work used the machine while it was measured.
  const RunTotals busy = totals_of(131.985, {850, 850, 850, 850});
  EXPECT_TRUE(busy.far_from_plan());
  EXPECT_THAT(busy.closing_table(), HasSubstr("131985.0 ms"));
  EXPECT_THAT(busy.closing_table(), HasSubstr("850.0 ms (0.0064 of the plan)"));
  // Too few steps, or no plan, give no result.
  EXPECT_FALSE(totals_of(1, {9000, 9000, 9000}).far_from_plan());
  EXPECT_FALSE(totals_of(0, {1, 1, 1, 1, 1}).step_over_plan().has_value());
  EXPECT_THAT(totals_of(0, {1, 1, 1, 1, 1}).closing_table(), Not(HasSubstr("plan")));
}

TEST(RunTotals, LeaveOutWhatWasNotUsed) {
  RunTotals totals;
  totals.add({.step = 1, .loss = 1});
  const std::string table = totals.closing_table();
  EXPECT_THAT(table, Not(HasSubstr("traffic")));
  EXPECT_THAT(table, Not(HasSubstr("memory")));
  EXPECT_THAT(table, Not(HasSubstr("skipped")));
  EXPECT_THAT(table, Not(HasSubstr("nan")));
}

TEST(TextTable, AlignsTheFirstColumnLeftAndTheOthersRight) {
  EXPECT_EQ(aligned({{"a", "bb"}, {"long", "c", "d"}, {"x"}}), "a     bb\nlong   c  d\nx\n");
  EXPECT_EQ(aligned({}), "");
}

TEST(TextTable, ShowsDurationsAndCountsInAFewLetters) {
  EXPECT_EQ(duration(0.94), "0.9 s");
  EXPECT_EQ(duration(-1), "0.0 s");
  EXPECT_EQ(duration(59.99), "1:00");
  EXPECT_EQ(duration(75.4), "1:15");
  EXPECT_EQ(duration(3700), "1:01:40");
  EXPECT_EQ(duration(1.0 / 0.0), "?");
  EXPECT_EQ(compact(999.4), "999");
  EXPECT_EQ(compact(999.6), "1.0k");
  EXPECT_EQ(compact(99'960), "100k");
  EXPECT_EQ(compact(1'500'000), "1.50M");
  EXPECT_EQ(compact(999'994'000), "999.99M");
  EXPECT_EQ(compact(999'996'000), "1.00B");
  EXPECT_EQ(compact(32'762'120'000), "32.76B");
}

}  // namespace
}  // namespace sluice::engine
