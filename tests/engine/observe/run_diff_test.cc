#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "engine/observe/run_totals.h"

namespace sluice::engine {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

std::vector<StepMetrics> run_of(std::int64_t first, std::int64_t last) {
  std::vector<StepMetrics> run;
  for (std::int64_t step = first; step <= last; ++step) {
    StepMetrics metrics;
    metrics.step = step;
    metrics.loss = 4.0 / static_cast<double>(step);
    metrics.unit_hashes = {{"embedding", 1, 2}, {"block.0", 3, 4}, {"block.1", 5, 6}};
    run.push_back(metrics);
  }
  return run;
}

TEST(RunDiff, SeesNoDifferenceInTimesBytesAndMemory) {
  const auto a = run_of(1, 5);
  auto b = a;
  for (StepMetrics& metrics : b) {
    metrics.tokens_per_s = metrics.step_ms = metrics.forward_ms = metrics.backward_ms = 7;
    metrics.update_ms = metrics.update_exposed_ms = 7;
    metrics.nvme_read_bytes = metrics.nvme_write_bytes = metrics.h2d_bytes = 7;
    metrics.d2h_bytes = metrics.gpu_peak_bytes = metrics.host_pinned_bytes = 7;
    metrics.host_rss_bytes = 7;
    metrics.val_loss = 3;  // evaluated in only one run
  }
  const RunComparison compared = compare_runs(a, b);
  EXPECT_FALSE(compared.difference);
  EXPECT_EQ(compared.equal_steps, 5);
  EXPECT_EQ(compared.hashed_steps, 5);
}

TEST(RunDiff, SeesEachResultByItsLastBit) {
  const auto a = run_of(1, 3);
  const auto up = [](double& value) { value = std::nextafter(value, 1e9); };
  const std::vector<std::function<void(StepMetrics&)>> changes = {
      [&](StepMetrics& m) { up(m.loss); },
      [&](StepMetrics& m) { up(m.lr); },
      [&](StepMetrics& m) { up(m.grad_norm); },
      [&](StepMetrics& m) { up(m.loss_scale); },
      [&](StepMetrics& m) { m.skipped = !m.skipped; },
  };
  for (const auto& change : changes) {
    auto b = a;
    change(b[1]);
    const RunComparison compared = compare_runs(a, b);
    ASSERT_TRUE(compared.difference);
    EXPECT_EQ(compared.difference->step, 2);
    EXPECT_EQ(compared.difference->metrics.size(), 1U);
    EXPECT_EQ(compared.equal_steps, 1);
  }
}

TEST(RunDiff, NamesTheUnitsOfTheFirstStepThatDiffers) {
  const auto a = run_of(1, 4);
  auto b = a;
  b[2].unit_hashes[1].gradient ^= 1;
  b[2].unit_hashes[1].parameters ^= 1;
  b[2].unit_hashes[2].parameters ^= 1;
  b[3].unit_hashes[0].gradient ^= 1;
  const auto difference = compare_runs(a, b).difference;
  ASSERT_TRUE(difference);
  EXPECT_EQ(difference->step, 3);
  EXPECT_THAT(difference->metrics, IsEmpty());
  EXPECT_THAT(difference->gradients, ElementsAre("block.0"));
  EXPECT_THAT(difference->parameters, ElementsAre("block.0", "block.1"));
}

TEST(RunDiff, ComparesTheStepsThatBothHave) {
  const auto a = run_of(1, 6);
  const auto b = run_of(4, 9);
  const RunComparison compared = compare_runs(a, b);
  EXPECT_EQ(compared.equal_steps, 3);
  EXPECT_EQ(compared.only_in_a, 3);
  EXPECT_EQ(compared.only_in_b, 3);
  EXPECT_EQ(compare_runs(a, run_of(7, 8)).equal_steps, 0);
}

TEST(RunDiff, TakesALossThatIsNoNumberOnBothSidesForTheSame) {
  auto a = run_of(1, 1);
  a[0].loss = std::nan("");
  EXPECT_FALSE(compare_runs(a, a).difference);
  EXPECT_TRUE(compare_runs(a, run_of(1, 1)).difference);
}

TEST(RunDiff, SaysWhenTheModelsHaveOtherUnits) {
  const auto a = run_of(1, 1);
  auto b = a;
  b[0].unit_hashes.pop_back();
  EXPECT_THAT(compare_runs(a, b).difference->metrics, ElementsAre("3 and 2 units"));
  b = a;
  b[0].unit_hashes[1].unit = "other";
  EXPECT_THAT(compare_runs(a, b).difference->metrics, ElementsAre("unit block.0 and unit other"));
  b[0].unit_hashes.clear();
  EXPECT_FALSE(compare_runs(a, b).difference);
}

}  // namespace
}  // namespace sluice::engine
