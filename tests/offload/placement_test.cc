#include "offload/planner/placement.h"

#include <gtest/gtest.h>

#include "offload/planner/placement_planner.h"
#include "offload/planner/placement_space.h"
#include "tests/offload/element_ledger.h"
#include "tests/offload/step_model_cases.h"

namespace sluice::offload {
namespace {

// Embedding 1000, three blocks of 2000, head 10 elements; all bytes per element are different.
void count(PlannerInput& input, std::uint64_t fixed_gpu = 1) {
  count_elements(input,
                 {.gpu_state = 11,
                  .gpu_grad = 3,
                  .gpu_param = 2,
                  .host_state = 12,
                  .host_param = 5,
                  .host_grad = 7,
                  .nvme_state = 13,
                  .nvme_param = 6},
                 {.gpu = fixed_gpu, .cpu = 2, .nvme = 3});
}

PlannerInput small_input() {
  PlannerInput input;
  input.units = {{.name = "embedding", .elements = 1000}};
  for (int i = 0; i < 3; ++i) {
    input.units.push_back({.name = "h",
                           .elements = 2000,
                           .forward_s = 1,
                           .recompute_s = 0.5,
                           .backward_s = 2,
                           .unit_input_bytes = 100,
                           .kept_bytes = 700});
  }
  input.units.push_back({.name = "head", .elements = 10, .forward_s = 1, .backward_s = 2});
  input.step.prefetch_units = 1;
  input.step.swap_buffer_elements = 50;
  input.granule_elements = 1;
  input.unit_input_slots = 1;
  count(input);
  return input;
}

TEST(PlacementSpace, PutsOnNvmeExactlyWhatRamDoesNotHold) {
  PlannerInput input = small_input();
  input.budget = {.gpu = 1 << 20, .cpu = 0, .nvme = 1 << 20};
  std::uint64_t before = 7010;
  for (std::uint64_t cpu = 86'000; cpu < 180'000; cpu += 7'777) {
    input.budget.cpu = cpu;
    const PlacementSpace space(input);
    const std::vector<UnitPlacement> places = space.places({.offloaded = 1});
    const TierBytes bytes = input.ledger->bytes(places);
    EXPECT_LE(bytes.cpu, cpu);
    std::uint64_t on_nvme = 0;
    for (const UnitPlacement& place : places) {
      EXPECT_FALSE(place.params_on_nvme);
      on_nvme += place.nvme_elements;
    }
    // One more element would not have fitted.
    if (on_nvme > 0) {
      EXPECT_GT(bytes.cpu + 12 * 2, cpu);
    }
    EXPECT_LE(on_nvme, before);
    before = on_nvme;
  }
  EXPECT_EQ(before, 0);
}

TEST(PlacementSpace, SpillsParametersOnlyWhenAllStateHasLeftRam) {
  PlannerInput input = small_input();
  input.budget = {.gpu = 1 << 20, .cpu = 0, .nvme = 1 << 20};
  const std::uint64_t without_state = 2 + 7010 * (5 + 7) + 13 * 50;
  for (const std::uint64_t cpu : {without_state, without_state - 1, without_state - 25'000}) {
    input.budget.cpu = cpu;
    const PlacementSpace space(input);
    const std::vector<UnitPlacement> places = space.places({});
    std::uint64_t in_ram = 0;
    int spilled = 0;
    for (const UnitPlacement& place : places) {
      in_ram += place.cpu_elements;
      spilled += place.params_on_nvme ? 1 : 0;
    }
    EXPECT_EQ(in_ram, 0);
    EXPECT_EQ(spilled > 0, cpu < without_state) << cpu;
  }
}

TEST(PlacementFit, SaysWhatIsMissingWhere) {
  PlannerInput input = small_input();
  input.budget = {.gpu = 1 << 20, .cpu = 1 << 20, .nvme = 3};
  EXPECT_EQ(leanest_placement(input).missing.total(), 0);
  input.rules.state = all_state_on(Tier::kCpu, input.units);
  input.rules.params = Tier::kCpu;
  const std::uint64_t needed = 2 + 7010 * (12 + 5 + 7);
  input.budget.cpu = needed;
  EXPECT_EQ(leanest_placement(input).missing.total(), 0);
  input.budget.cpu = needed - 100;
  const TierBytes missing = leanest_placement(input).missing;
  EXPECT_EQ(missing.cpu, 100);
  EXPECT_EQ(missing.gpu + missing.nvme, 0);
}

TEST(PlacementFit, HintsAtEachChangeThatIsEnoughAlone) {
  using Change = FitHint::Change;
  PlannerInput input = small_input();
  input.budget = {.gpu = 1 << 20, .cpu = 60'000, .nvme = 3};
  input.rules.state = all_state_on(Tier::kCpu, input.units);
  const std::vector<FitHint> hints = fit_hints(input);
  std::vector<Change> changes;
  for (const FitHint& hint : hints) changes.push_back(hint.change);
  // More GPU memory does not help as long as state must be in RAM.
  ASSERT_EQ(changes, (std::vector<Change>{Change::kMoreCpu, Change::kOptimizerAnywhere}));
  const std::uint64_t more = hints[0].more_bytes;
  input.budget.cpu += more;
  EXPECT_EQ(leanest_placement(input).missing.total(), 0);
  input.budget.cpu -= more / 50 + 4096;
  EXPECT_GT(leanest_placement(input).missing.total(), 0);
}

TEST(PlacementFit, HintsAtSmallerActivationsWhereTheGpuIsShort) {
  using Change = FitHint::Change;
  PlannerInput input = small_input();
  input.budget = {.gpu = 30'000, .cpu = 1 << 20, .nvme = 1 << 20};
  input.rules.recompute = Tristate::kOff;
  for (UnitCost& unit : input.units)
    if (unit.kept_bytes > 0) unit.kept_bytes = 1000;
  count(input, /*fixed_gpu=*/10'000);
  std::vector<Change> changes;
  for (const FitHint& hint : fit_hints(input)) changes.push_back(hint.change);
  EXPECT_EQ(changes, (std::vector<Change>{Change::kMoreGpu, Change::kRecompute}));
}

}  // namespace
}  // namespace sluice::offload
