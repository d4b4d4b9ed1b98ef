// run.hash_units: equal runs have equal hashes wherever their state is stored, and a hash changes
// with the data it covers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/observe/run_totals.h"
#include "tests/engine/run/run_under_test.h"

namespace sluice::engine {
namespace {

std::vector<StepMetrics> hashes_of(std::vector<std::string> overrides, int steps = 4) {
  overrides.emplace_back("run.hash_units=true");
  const SmallRun small(overrides);
  const auto run = small.start();
  std::vector<StepMetrics> all;
  for (int step = 1; step <= steps; ++step) {
    StepMetrics metrics;
    metrics.step = step;
    metrics.loss = run->step().loss;
    metrics.unit_hashes = run->trainer().unit_hashes();
    all.push_back(metrics);
  }
  return all;
}

TEST(UnitHashes, AreTheSameWhereverTheStateLies) {
  const auto on_cpu = hashes_of({});
  ASSERT_EQ(on_cpu[0].unit_hashes.size(), 5U);
  EXPECT_EQ(on_cpu[0].unit_hashes[1].unit, "h.0");
  const auto elsewhere =
      hashes_of({"zero_optimization.offload_optimizer.device=nvme",
                 "zero_optimization.offload_param.device=nvme",
                 "zero_optimization.stage3_param_persistence_threshold=0",
                 "zero_optimization.sub_group_size=1000", "placement.overlap_update=false"});
  const RunComparison compared = compare_runs(on_cpu, elsewhere);
  EXPECT_FALSE(compared.difference);
  EXPECT_EQ(compared.hashed_steps, 4);
}

// The rates of the first two steps of a warm-up are 0, like DeepSpeed's.
constexpr std::size_t kFirstChange = 2;

TEST(UnitHashes, ChangeWithEveryStepAndEveryUnit) {
  const auto steps = hashes_of({});
  for (std::size_t i = 1; i < steps.size(); ++i) {
    for (std::size_t unit = 0; unit < steps[i].unit_hashes.size(); ++unit) {
      EXPECT_NE(steps[i].unit_hashes[unit].gradient, steps[i - 1].unit_hashes[unit].gradient);
      EXPECT_EQ(i < kFirstChange,
                steps[i].unit_hashes[unit].parameters == steps[i - 1].unit_hashes[unit].parameters);
    }
  }
}

// In the first step with a learning rate the gradients are equal, but the updates differ.
TEST(UnitHashes, TellAnOtherUpdateFromOtherGradients) {
  const auto difference =
      compare_runs(hashes_of({}), hashes_of({"optimizer.params.weight_decay=0.9"})).difference;
  ASSERT_TRUE(difference);
  EXPECT_EQ(difference->step, kFirstChange + 1);
  EXPECT_THAT(difference->gradients, testing::IsEmpty());
  EXPECT_FALSE(difference->parameters.empty());
}

TEST(UnitHashes, AreNotTakenUnlessAskedFor) {
  const SmallRun small;
  const auto run = small.start();
  run->step();
  EXPECT_TRUE(run->trainer().unit_hashes().empty());
}

}  // namespace
}  // namespace sluice::engine
