#include "offload/planner/placement.h"

#include <gtest/gtest.h>

#include "offload/planner/placement_fit.h"
#include "offload/planner/placement_space.h"
#include "tests/offload/step_model_cases.h"

namespace sluice::offload {
namespace {

// Embedding 1000, three blocks of 2000, head 10 elements; all element bytes are different.
PlannerInput small_input() {
  PlannerInput input;
  input.units = {{.name = "embedding", .elements = 1000, .slot_elements = 1024}};
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
  input.bytes = {.gpu_state = 11,
                 .gpu_grad = 3,
                 .gpu_param = 2,
                 .host_state = 12,
                 .host_param = 5,
                 .host_grad = 7,
                 .nvme_state = 13,
                 .nvme_param = 6};
  input.step.prefetch_units = 1;
  input.step.swap_buffer_elements = 50;
  input.fixed = {.gpu = 1, .cpu = 2, .nvme = 3};
  input.granule_elements = 1;
  input.unit_input_slots = 1;
  return input;
}

TEST(Placement, CountsWhatEachPartTakes) {
  const PlannerInput input = small_input();
  std::vector<UnitPlacement> places(5);
  places[0] = {.gpu_elements = 600, .cpu_elements = 400, .resident = true};
  places[1] = {.cpu_elements = 2000, .activations = ActivationPlace::kOffload};
  places[2] = {.cpu_elements = 500, .nvme_elements = 1500, .params_on_nvme = true};
  places[3] = {.gpu_elements = 2000, .resident = true, .activations = ActivationPlace::kKeep};
  places[4] = {.cpu_elements = 10, .resident = true};
  const TierBytes bytes = placed_bytes(input, places);
  const std::uint64_t resident = 1024 + 2000 + 10;
  const std::uint64_t slots = 2 * 2000;
  const std::uint64_t stages = 2 * 2000;
  EXPECT_EQ(bytes.gpu,
            1 + 2 * (resident + slots + stages) + 11 * 2600 + 3 * (1000 + 2000) + 2 * 100 + 700);
  const std::uint64_t cpu_state = 400 + 2000 + 500 + 10;
  EXPECT_EQ(bytes.cpu, 2 + 12 * cpu_state + 5 * (1000 + 2000 + 10 + /* cached */ 2000) +
                           7 * (1000 + 2000 + 2000 + 10) + 13 * 50 + 100);
  EXPECT_EQ(bytes.nvme, 3 + 13 * 1500 + 6 * 2000);
}

// As ParamLayout: 1000 joins nobody, 600 is joined by 500 and not by 400.
TEST(Placement, HasBuffersOfEachSizeForParametersOnNvme) {
  PlannerInput input;
  input.bytes = {.host_state = 0, .host_param = 1, .host_grad = 0, .nvme_state = 0};
  input.step.param_cache_units = 2;
  for (const std::uint64_t elements : {600, 1000, 500, 400, 600})
    input.units.push_back({.name = "unit", .elements = elements});
  std::vector<UnitPlacement> places;
  for (const UnitCost& unit : input.units)
    places.push_back({.nvme_elements = unit.elements, .params_on_nvme = true});
  EXPECT_EQ(placed_bytes(input, places).cpu, 1000 + 2 * 600 + 400);
}

TEST(Placement, HasNoSlotsWhereAllUnitsAreResident) {
  PlannerInput input = small_input();
  input.fixed = {};
  std::vector<UnitPlacement> places;
  for (const UnitCost& unit : input.units)
    places.push_back({.gpu_elements = unit.elements, .resident = true});
  const TierBytes bytes = placed_bytes(input, places);
  EXPECT_EQ(bytes.gpu, 2 * (1024 + 6000 + 10) + 14 * 7010 + 3 * 100);
  EXPECT_EQ(bytes.cpu, 0);
  EXPECT_EQ(bytes.nvme, 0);
}

TEST(PlacementSpace, PutsOnNvmeExactlyWhatRamDoesNotHold) {
  PlannerInput input = small_input();
  input.budget = {.gpu = 1 << 20, .cpu = 0, .nvme = 1 << 20};
  std::uint64_t before = 7010;
  for (std::uint64_t cpu = 86'000; cpu < 180'000; cpu += 7'777) {
    input.budget.cpu = cpu;
    const PlacementSpace space(input);
    const std::vector<UnitPlacement> places = space.places({.offloaded = 1});
    const TierBytes bytes = placed_bytes(input, places);
    EXPECT_LE(bytes.cpu, cpu);
    std::uint64_t on_nvme = 0;
    for (const UnitPlacement& place : places) {
      EXPECT_FALSE(place.params_on_nvme);
      on_nvme += place.nvme_elements;
    }
    // One element more would not have fitted.
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
  // More of the GPU helps nobody as long as state is to be in RAM.
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
  input.fixed.gpu = 10'000;
  input.half_micro_batch_bytes = 4000;
  std::vector<Change> changes;
  for (const FitHint& hint : fit_hints(input)) changes.push_back(hint.change);
  EXPECT_EQ(changes,
            (std::vector<Change>{Change::kMoreGpu, Change::kRecompute, Change::kHalfMicroBatch}));
}

}  // namespace
}  // namespace sluice::offload
