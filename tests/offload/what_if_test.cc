#include <gtest/gtest.h>

#include <algorithm>
#include <optional>

#include "offload/planner/placement_planner.h"
#include "tests/offload/element_ledger.h"
#include "tests/offload/step_model_cases.h"

namespace sluice::offload {
namespace {

using Change = WhatIf::Change;

// Embedding and head of 10 elements, four blocks of 1000; bytes of state as in bf16 training.
PlannerInput input_with(double forward_s) {
  PlannerInput input;
  input.units.push_back({.name = "embedding", .elements = 10});
  for (int i = 0; i < 4; ++i) {
    input.units.push_back({.name = "h",
                           .elements = 1000,
                           .forward_s = forward_s,
                           .recompute_s = forward_s,
                           .backward_s = 2 * forward_s,
                           .unit_input_bytes = 100,
                           .kept_bytes = 1000});
  }
  input.units.push_back({.name = "head", .elements = 10});
  input.speeds = instant_machine();
  input.granule_elements = 1;
  input.step.record_elements = 500;
  input.step.swap_buffer_elements = 1000;
  count_elements(input);
  return input;
}

// `fixed_gpu`: the part of the fixed bytes that belongs to the micro-batch.
WhatIfOptions twice_the_tokens(std::uint64_t fixed_gpu = 0) {
  return {.twice_micro_batch = [fixed_gpu](PlannerInput input) -> Result<PlannerInput> {
    for (UnitCost& unit : input.units) {
      unit.forward_s *= 2;
      unit.recompute_s *= 2;
      unit.backward_s *= 2;
      unit.unit_input_bytes *= 2;
      unit.kept_bytes *= 2;
    }
    count_elements(input, {}, {.gpu = 2 * fixed_gpu});
    return input;
  }};
}

std::optional<WhatIf> find(const std::vector<WhatIf>& what_ifs, Change change) {
  const auto found = std::find_if(what_ifs.begin(), what_ifs.end(),
                                  [change](const WhatIf& it) { return it.change == change; });
  return found == what_ifs.end() ? std::nullopt : std::optional(*found);
}

std::vector<WhatIf> what_ifs_of(const PlannerInput& input, const WhatIfOptions& options) {
  const auto plan = plan_placement(input);
  EXPECT_TRUE(plan.ok() && plan->fits);
  const auto what_ifs = find_what_ifs(input, *plan, options);
  EXPECT_TRUE(what_ifs.ok());
  EXPECT_TRUE(std::is_sorted(what_ifs->begin(), what_ifs->end(), [](const auto& a, const auto& b) {
    return a.tokens_per_s_ratio > b.tokens_per_s_ratio;
  }));
  return *what_ifs;
}

TEST(WhatIf, NamesTheDrivesWhereTheyAreTheBottleneck) {
  PlannerInput input = input_with(0.001);
  input.speeds.drives = duplex(10'000);
  input.rules = {.state = all_state_on(Tier::kNvme, input.units), .params = Tier::kCpu};
  input.budget = {.gpu = 1 << 20, .cpu = 1 << 20, .nvme = 1 << 20};
  const auto what_ifs = what_ifs_of(input, twice_the_tokens());
  EXPECT_EQ(what_ifs.front().change, Change::kTwiceMicroBatch) << "the drives do as much for it";
  EXPECT_NEAR(find(what_ifs, Change::kTwiceDrives)->tokens_per_s_ratio, 2, 0.05);
  EXPECT_NEAR(find(what_ifs, Change::kMoreRam)->tokens_per_s_ratio, 1, 1e-3);
  EXPECT_NEAR(find(what_ifs, Change::kMoreGpu)->tokens_per_s_ratio, 1, 1e-3);
  EXPECT_FALSE(find(what_ifs, Change::kOverlapUpdate)) << "it is on";
}

TEST(WhatIf, NamesMemoryWhereTheDrivesStandInForIt) {
  PlannerInput input = input_with(0.001);
  input.speeds.drives = duplex(10'000);
  input.rules.params = Tier::kCpu;
  // RAM for half of the state, and no GPU memory for it.
  input.budget = {.gpu = 20'000, .cpu = 16'160 + 10'000 + 20'000, .nvme = 1 << 20};
  const auto what_ifs =
      what_ifs_of(input, {.more_ram_bytes = 1 << 20,
                          .more_gpu_bytes = 1 << 20,
                          .twice_micro_batch = twice_the_tokens().twice_micro_batch});
  EXPECT_GT(find(what_ifs, Change::kMoreRam)->tokens_per_s_ratio, 20);
  EXPECT_GT(find(what_ifs, Change::kMoreGpu)->tokens_per_s_ratio, 20);
  EXPECT_GT(find(what_ifs, Change::kTwiceDrives)->tokens_per_s_ratio, 1.5);
  EXPECT_GT(find(what_ifs, Change::kTwiceMicroBatch)->tokens_per_s_ratio, 1.5);
}

TEST(WhatIf, NamesOverlapAndTheBatchWhereTheCpuIsTheBottleneck) {
  PlannerInput input = input_with(1);
  input.speeds.cpu_adamw_elements_per_s = 500;
  input.rules = {.state = all_state_on(Tier::kCpu, input.units),
                 .params = Tier::kCpu,
                 .recompute = Tristate::kOn};
  input.step.overlap_update = false;
  input.budget = {.gpu = 1 << 20, .cpu = 1 << 20, .nvme = 0};
  // 8.04 for AdamW and 16; overlapped, three of the four seconds of forward are hidden; with twice
  // the tokens 8.04 and 32.
  const auto what_ifs = what_ifs_of(input, twice_the_tokens());
  EXPECT_FALSE(find(what_ifs, Change::kTwiceDrives)) << "there are none in use";
  EXPECT_NEAR(find(what_ifs, Change::kOverlapUpdate)->step_s, 24.04 - 3, 0.02);
  EXPECT_NEAR(find(what_ifs, Change::kTwiceMicroBatch)->step_s, 40.04, 0.01);
  EXPECT_NEAR(find(what_ifs, Change::kTwiceMicroBatch)->tokens_per_s_ratio, 2 * 24.04 / 40.04,
              1e-3);
}

TEST(WhatIf, AsksTheCallerForTheLargerMicroBatch) {
  PlannerInput input = input_with(1);
  input.budget = {.gpu = 1 << 20, .cpu = 1 << 20, .nvme = 0};
  const auto twice = [](PlannerInput larger) -> Result<PlannerInput> {
    for (UnitCost& unit : larger.units) unit.forward_s *= 1.5;
    return larger;
  };
  input.rules.recompute = Tristate::kOff;
  const auto what_ifs = what_ifs_of(input, {.twice_micro_batch = twice});
  EXPECT_NEAR(find(what_ifs, Change::kTwiceMicroBatch)->step_s, 4 * 1.5 + 8, 0.01);
}

TEST(WhatIf, DoesNotNameTheMemoryOfAGpuThatIsNotThere) {
  PlannerInput input = input_with(1);
  input.rules.state_on_gpu = false;
  input.budget = {.gpu = 1 << 20, .cpu = 1 << 20, .nvme = 0};
  EXPECT_FALSE(find(what_ifs_of(input, twice_the_tokens()), Change::kMoreGpu));
  EXPECT_TRUE(find(what_ifs_of(input, {}), Change::kMoreRam));
}

TEST(WhatIf, LeavesOutWhatDoesNotFit) {
  PlannerInput input = input_with(1);
  constexpr std::uint64_t kMicroBatchBytes = 100'000;
  count_elements(input, {}, {.gpu = kMicroBatchBytes});
  input.budget = {.gpu = 150'000, .cpu = 1 << 20, .nvme = 0};
  EXPECT_FALSE(
      find(what_ifs_of(input, twice_the_tokens(kMicroBatchBytes)), Change::kTwiceMicroBatch));
}

}  // namespace
}  // namespace sluice::offload
