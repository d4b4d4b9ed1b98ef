// Compares the planner with all possible placements, and tests what it must never do.
#include "offload/planner/placement_planner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "tests/offload/element_ledger.h"
#include "tests/offload/step_model_cases.h"
#include "tests/sanitized.h"

namespace sluice::offload {
namespace {

PlannerInput random_input(std::mt19937_64& random, int blocks) {
  PlannerInput input;
  RandomModel model = random_model(random, blocks, random() % 2 == 0);
  input.units = std::move(model.units);
  input.speeds = model.speeds;
  input.step.prefetch_units = 1;
  input.step.record_elements = 250'000;
  input.step.swap_buffer_elements = 1'000'000;
  input.granule_elements = 4096;
  input.unit_input_slots = 1;
  double elements = 0;
  for (const UnitCost& unit : input.units) elements += static_cast<double>(unit.elements);
  const auto some = [&](double low, double high) {
    return static_cast<std::uint64_t>(elements *
                                      std::uniform_real_distribution<double>(low, high)(random));
  };
  input.budget = {.gpu = some(7, 30), .cpu = some(7, 20), .nvme = some(0, 15)};
  count_elements(input);
  return input;
}

// All placements of a whole unit; embedding and head are always resident.
std::vector<UnitPlacement> choices(const UnitCost& unit, bool is_end) {
  std::vector<UnitPlacement> places = {on_gpu(unit), on_cpu(unit, true), on_nvme(unit, true)};
  if (!is_end) places.insert(places.end(), {on_cpu(unit, false), on_nvme(unit, false)});
  if (unit.kept_bytes == 0) return places;
  std::vector<UnitPlacement> all;
  for (const ActivationPlace activations :
       {ActivationPlace::kKeep, ActivationPlace::kRecompute, ActivationPlace::kOffload}) {
    for (UnitPlacement place : places) {
      place.activations = activations;
      all.push_back(place);
    }
  }
  return all;
}

// At least one place on the GPU for inputs that return to it.
bool has_ring(const std::vector<UnitPlacement>& places) {
  bool leaves = false;
  bool stays = false;
  for (std::size_t i = 1; i + 1 < places.size(); ++i) {
    leaves = leaves || places[i].activations == ActivationPlace::kOffload;
    stays = stays || places[i].activations == ActivationPlace::kRecompute;
  }
  return stays || !leaves;
}

// The shortest step of all fitting placements of whole units; infinite: none fits.
double shortest_of_all(const PlannerInput& input) {
  std::vector<std::vector<UnitPlacement>> of;
  for (std::size_t i = 0; i < input.units.size(); ++i)
    of.push_back(choices(input.units[i], i == 0 || i + 1 == input.units.size()));
  std::vector<std::size_t> at(of.size(), 0);
  std::vector<UnitPlacement> places(of.size());
  double shortest_s = std::numeric_limits<double>::infinity();
  while (true) {
    for (std::size_t i = 0; i < of.size(); ++i) places[i] = of[i][at[i]];
    if (has_ring(places) && input.ledger->bytes(places).within(input.budget)) {
      shortest_s =
          std::min(shortest_s, predict_step(input.units, places, input.speeds, input.step).step_s);
    }
    std::size_t digit = 0;
    while (digit < at.size() && ++at[digit] == of[digit].size()) at[digit++] = 0;
    if (digit == at.size()) return shortest_s;
  }
}

void expect_nearly_the_best(std::uint64_t first_seed, std::uint64_t seeds, int most_blocks) {
  std::uint64_t compared = 0;
  for (std::uint64_t seed = first_seed; seed < first_seed + seeds; ++seed) {
    std::mt19937_64 random(seed);
    const int blocks = 1 + static_cast<int>(random() % static_cast<std::uint64_t>(most_blocks));
    const PlannerInput input = random_input(random, blocks);
    const double shortest_s = shortest_of_all(input);
    const auto plan = plan_placement(input);
    ASSERT_TRUE(plan.ok());
    if (std::isinf(shortest_s)) continue;
    ++compared;
    ASSERT_TRUE(plan->fits) << "seed " << seed;
    EXPECT_LE(plan->prediction.step_s, 1.05 * shortest_s) << "seed " << seed;
  }
  EXPECT_GE(compared, seeds / 2);
}

TEST(PlacementPlanner, IsNearlyAsGoodAsTheBestOfAllPlacements) { expect_nearly_the_best(1, 40, 2); }

TEST(LongPlacementPlanner, IsNearlyAsGoodAsTheBestOfAllPlacements) {
  expect_nearly_the_best(1000, 100, 3);
}

// Changes one unit's place at random.
void mutate(const PlannerInput& input, std::mt19937_64& random,
            std::vector<UnitPlacement>& places) {
  const std::size_t index = random() % places.size();
  const bool is_end = index == 0 || index + 1 == places.size();
  UnitPlacement& place = places[index];
  const std::uint64_t elements = input.units[index].elements;
  switch (random() % 4) {
    case 0:
      place.gpu_elements = elements * (random() % 5) / 4;
      place.nvme_elements = 0;
      break;
    case 1:
      place.nvme_elements = (elements - place.gpu_elements) * (random() % 3) / 2;
      break;
    case 2:
      place.resident = is_end || !place.resident;
      break;
    default:
      if (!is_end) place.activations = static_cast<ActivationPlace>(random() % 2);
      break;
  }
  place.resident = place.resident || place.gpu_elements > 0;
  place.cpu_elements = elements - place.gpu_elements - place.nvme_elements;
}

// Models too large to try everything: thousands of small changes find few improvements.
TEST(PlacementPlanner, IsHardToImproveOn) {
  for (std::uint64_t seed = 1; seed <= 8; seed += sweep_stride(4)) {
    std::mt19937_64 random(seed);
    const PlannerInput input = random_input(random, 20);
    const auto plan = plan_placement(input);
    ASSERT_TRUE(plan.ok());
    if (!plan->fits) continue;
    std::vector<UnitPlacement> best = plan->places;
    double best_s = plan->prediction.step_s;
    for (int change = 0; change < 3000; ++change) {
      std::vector<UnitPlacement> places = best;
      for (std::uint64_t changes = 1 + random() % 3; changes > 0; --changes)
        mutate(input, random, places);
      if (!input.ledger->bytes(places).within(input.budget)) continue;
      const double step_s = predict_step(input.units, places, input.speeds, input.step).step_s;
      if (step_s >= best_s) continue;
      best_s = step_s;
      best = places;
    }
    EXPECT_LE(plan->prediction.step_s, 1.03 * best_s) << "seed " << seed;
  }
}

void expect_sound(const PlannerInput& input, const PlacementPlan& plan) {
  ASSERT_EQ(plan.places.size(), input.units.size());
  const bool may_stay = input.rules.resident != Tristate::kOff;
  for (std::size_t i = 0; i < plan.places.size(); ++i) {
    const UnitPlacement& place = plan.places[i];
    EXPECT_EQ(place.gpu_elements + place.cpu_elements + place.nvme_elements,
              input.units[i].elements);
    if (place.gpu_elements > 0) {
      EXPECT_EQ(place.resident, may_stay);
    }
    if (place.params_on_nvme && place.resident) {
      EXPECT_GT(place.cpu_elements + place.nvme_elements, 0);
    }
  }
  EXPECT_EQ(plan.places.front().resident, may_stay);
  EXPECT_EQ(plan.places.back().resident, may_stay);
  const TierBytes used = input.ledger->bytes(plan.places);
  EXPECT_EQ(used.gpu, plan.used.gpu);
  EXPECT_EQ(used.cpu, plan.used.cpu);
  EXPECT_EQ(used.nvme, plan.used.nvme);
  EXPECT_EQ(used.within(input.budget), plan.fits);
  EXPECT_EQ(plan.missing.total() == 0, plan.fits);
}

TEST(PlacementPlanner, NeverExceedsABudget) {
  int fitting = 0;
  int short_of_memory = 0;
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    PlannerInput input = random_input(random, 1 + static_cast<int>(random() % 12));
    count_elements(input, {}, {.gpu = random() % 1'000'000, .cpu = random() % 1'000'000});
    const double less = std::uniform_real_distribution<double>(0.2, 1)(random);
    input.budget.gpu = static_cast<std::uint64_t>(less * static_cast<double>(input.budget.gpu));
    input.budget.cpu = static_cast<std::uint64_t>(less * static_cast<double>(input.budget.cpu));
    const auto plan = plan_placement(input);
    ASSERT_TRUE(plan.ok());
    expect_sound(input, *plan);
    ++(plan->fits ? fitting : short_of_memory);
  }
  EXPECT_GE(fitting, 5);
  EXPECT_GE(short_of_memory, 5);
}

// Gradients alone exceed RAM, and the rest lacks a little of the GPU's memory. Putting all state on
// a GPU many times as large would be a shortage of a single tier, too.
TEST(PlacementPlanner, NamesWhatIsMissingWhereThatIsLeast) {
  constexpr std::uint64_t kGib = std::uint64_t{1} << 30;
  std::mt19937_64 random(1);
  PlannerInput input = random_input(random, 60);
  for (std::size_t unit = 0; unit < input.units.size(); ++unit)
    input.units[unit].elements = unit == 0 || unit + 1 == input.units.size() ? kGib / 8 : kGib;
  input.granule_elements = kGib / 16;
  input.step.record_elements = kGib / 16;
  input.step.swap_buffer_elements = kGib / 4;
  input.budget = {.gpu = 24 * kGib, .cpu = 64 * kGib, .nvme = 4096 * kGib};
  count_elements(input, {}, {.gpu = 20 * kGib, .cpu = 0});
  const auto plan = plan_placement(input);
  ASSERT_TRUE(plan.ok());
  EXPECT_FALSE(plan->fits);
  EXPECT_LT(plan->missing.gpu, 16 * kGib);
  EXPECT_GT(plan->missing.gpu, 0U);
  EXPECT_GT(plan->missing.cpu, 50 * kGib);
  EXPECT_LT(plan->missing.cpu, 80 * kGib);
  // Raising one tier alone would need a GPU that does not exist.
}

TEST(PlacementPlanner, IsNotSlowerWithALargerBudget) {
  for (std::uint64_t seed = 1; seed <= 8; seed += sweep_stride(4)) {
    std::mt19937_64 random(seed);
    PlannerInput input = random_input(random, 4 + static_cast<int>(random() % 12));
    double before_s = std::numeric_limits<double>::infinity();
    for (int more = 0; more < 5; ++more) {
      const auto plan = plan_placement(input);
      ASSERT_TRUE(plan.ok());
      if (plan->fits) {
        EXPECT_LE(plan->prediction.step_s, 1.02 * before_s) << "seed " << seed << ", " << more;
        before_s = std::min(before_s, plan->prediction.step_s);
      } else {
        EXPECT_TRUE(std::isinf(before_s)) << "seed " << seed;
      }
      input.budget.gpu += input.budget.gpu / 4;
      input.budget.cpu += input.budget.cpu / 4;
    }
  }
}

TEST(PlacementPlanner, TakesNoMoreMemoryThanMakesTheStepShorter) {
  std::mt19937_64 random(7);
  PlannerInput input = random_input(random, 6);
  // Only the GPU takes time.
  input.speeds = instant_machine();
  input.budget = {.gpu = 1ULL << 40, .cpu = 1ULL << 40, .nvme = 1ULL << 40};
  input.rules = {.state = all_state_on(Tier::kCpu, input.units), .recompute = Tristate::kOn};
  const auto plan = plan_placement(input);
  ASSERT_TRUE(plan.ok() && plan->fits);
  for (std::size_t i = 1; i + 1 < plan->places.size(); ++i)
    EXPECT_FALSE(plan->places[i].resident) << i;
}

// Exactly the inputs that RAM does not hold, since drives wear out.
TEST(PlacementPlanner, SendsInputsToTheDrivesWhereRamIsTooSmall) {
  std::mt19937_64 random(11);
  PlannerInput input = random_input(random, 6);
  constexpr std::uint64_t kInputBytes = 1'000'000'000;
  for (std::size_t i = 1; i + 1 < input.units.size(); ++i)
    input.units[i].unit_input_bytes = kInputBytes;
  input.speeds = instant_machine();
  input.unit_input_slots = 1;
  input.rules = {.state = all_state_on(Tier::kCpu, input.units),
                 .recompute = Tristate::kOn,
                 .unit_inputs_to_cpu = Tristate::kOn,
                 .unit_inputs_to_nvme = Tristate::kAuto};
  input.budget = {.gpu = 1ULL << 40, .cpu = 1ULL << 40, .nvme = 1ULL << 40};
  count_elements(input);
  const auto spilled = [&input] {
    const auto plan = plan_placement(input);
    EXPECT_TRUE(plan.ok() && plan->fits);
    return std::count_if(plan->places.begin(), plan->places.end(), [](const UnitPlacement& place) {
      return place.activations == ActivationPlace::kSpill;
    });
  };
  EXPECT_EQ(spilled(), 0);
  const auto roomy = plan_placement(input);
  ASSERT_TRUE(roomy.ok());
  input.budget.cpu = roomy->used.cpu - kInputBytes / 2;
  EXPECT_EQ(spilled(), 1);
  input.budget.cpu = roomy->used.cpu - 5 * kInputBytes;
  EXPECT_EQ(spilled(), 5);
  input.budget.nvme = 4 * kInputBytes;
  const auto plan = plan_placement(input);
  ASSERT_TRUE(plan.ok());
  EXPECT_FALSE(plan->fits);
}

// Where no placement does, the plan does not fit, and comes as near as it can.
TEST(PlacementPlanner, WritesNoMoreToDrivesThanIsAllowed) {
  const auto written_per_s = [](const PlacementPlan& plan) {
    return plan.prediction.nvme_write_bytes / plan.prediction.step_s;
  };
  int obeyed = 0;
  int refused = 0;
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    PlannerInput input = random_input(random, 4);
    input.budget = {
        .gpu = input.budget.gpu / 3, .cpu = input.budget.cpu / 3, .nvme = 3 * input.budget.nvme};
    const auto plan = plan_placement(input);
    ASSERT_TRUE(plan.ok());
    EXPECT_FALSE(plan->writes_too_much);
    if (!plan->fits || written_per_s(*plan) == 0) continue;
    for (const double share : {1.0, 0.9, 0.5, 0.0}) {
      input.max_nvme_write_bytes_per_s = share * written_per_s(*plan);
      const auto limited = plan_placement(input);
      ASSERT_TRUE(limited.ok());
      EXPECT_EQ(limited->missing.total(), 0U);
      EXPECT_NE(limited->fits, limited->writes_too_much);
      EXPECT_LE(written_per_s(*limited), written_per_s(*plan) * (1 + 1e-6));
      EXPECT_EQ(limited->fits, written_per_s(*limited) <= input.max_nvme_write_bytes_per_s);
      if (share == 1) {
        EXPECT_LE(limited->prediction.step_s, 1.05 * plan->prediction.step_s);
      } else {
        ++(limited->fits ? obeyed : refused);
      }
    }
  }
  EXPECT_GT(obeyed, 5);
  EXPECT_GT(refused, 5);
}

// ---- rules --------------------------------------------------------------------------------------

struct Totals {
  std::uint64_t gpu = 0;
  std::uint64_t cpu = 0;
  std::uint64_t nvme = 0;
  std::uint64_t all = 0;
  int resident = 0;
  int params_on_nvme = 0;
  int kept = 0;
  int offloaded = 0;
  int spilled = 0;

  explicit Totals(const std::vector<UnitPlacement>& places) {
    for (const UnitPlacement& place : places) {
      gpu += place.gpu_elements;
      cpu += place.cpu_elements;
      nvme += place.nvme_elements;
      resident += place.resident ? 1 : 0;
      params_on_nvme += place.params_on_nvme ? 1 : 0;
      kept += place.activations == ActivationPlace::kKeep ? 1 : 0;
      offloaded += place.activations == ActivationPlace::kOffload ? 1 : 0;
      spilled += place.activations == ActivationPlace::kSpill ? 1 : 0;
    }
    all = gpu + cpu + nvme;
  }
};

class PlacementRulesTest : public testing::TestWithParam<std::uint64_t> {
 protected:
  PlacementRulesTest() : random_(GetParam()), input_(random_input(random_, kBlocks)) {
    input_.budget = {.gpu = 1ULL << 30, .cpu = 1ULL << 30, .nvme = 1ULL << 30};
  }
  Totals plan() {
    const auto plan = plan_placement(input_);
    EXPECT_TRUE(plan.ok() && plan->fits);
    expect_sound(input_, *plan);
    return Totals(plan->places);
  }

  static constexpr int kBlocks = 8;
  std::mt19937_64 random_;
  PlannerInput input_;
};

TEST_P(PlacementRulesTest, PutsStateWhereItIsToldTo) {
  input_.rules.state = all_state_on(Tier::kGpu, input_.units);
  EXPECT_EQ(plan().gpu, plan().all);
  input_.rules.state = all_state_on(Tier::kCpu, input_.units);
  EXPECT_EQ(plan().cpu, plan().all);
  input_.rules.state = all_state_on(Tier::kNvme, input_.units);
  EXPECT_EQ(plan().nvme, plan().all);
}

TEST_P(PlacementRulesTest, SharesStateAsItIsTold) {
  for (const UnitCost& unit : input_.units) {
    const std::uint64_t gpu = random_() % (unit.elements + 1);
    const std::uint64_t cpu = random_() % (unit.elements - gpu + 1);
    input_.rules.state.push_back({.gpu = gpu, .cpu = cpu, .nvme = unit.elements - gpu - cpu});
  }
  const auto plan = plan_placement(input_);
  ASSERT_TRUE(plan.ok() && plan->fits);
  expect_sound(input_, *plan);
  for (std::size_t i = 0; i < plan->places.size(); ++i) {
    EXPECT_EQ(plan->places[i].gpu_elements, input_.rules.state[i].gpu) << i;
    EXPECT_EQ(plan->places[i].cpu_elements, input_.rules.state[i].cpu) << i;
    EXPECT_EQ(plan->places[i].nvme_elements, input_.rules.state[i].nvme) << i;
  }
}

TEST_P(PlacementRulesTest, PutsParametersWhereTheyAreToldTo) {
  input_.rules.state = all_state_on(Tier::kCpu, input_.units);
  input_.rules.params = Tier::kGpu;
  EXPECT_EQ(plan().resident, kBlocks + 2);
  EXPECT_EQ(plan().params_on_nvme, 0);
  input_.rules.params = Tier::kCpu;
  EXPECT_EQ(plan().resident, 2);
  EXPECT_EQ(plan().params_on_nvme, 0);
  input_.rules.params = Tier::kNvme;
  EXPECT_EQ(plan().resident, 2);
  EXPECT_EQ(plan().params_on_nvme, kBlocks + 2);
}

// State may be anywhere, including on the GPU for a unit that is streamed.
TEST_P(PlacementRulesTest, KeepsUnitsWholeOrPassingAsItIsTold) {
  input_.step.ranks = {.world = 2, .local_world = 2};
  input_.speeds.link = {.gather_bytes_per_s = kAtOnce, .exchange_bytes_per_s = kAtOnce};
  input_.rules.resident = Tristate::kOn;
  EXPECT_EQ(plan().resident, kBlocks + 2);
  input_.rules.resident = Tristate::kOff;
  EXPECT_EQ(plan().resident, 0);
  EXPECT_GT(plan().gpu, 0);
  input_.rules.params = Tier::kNvme;
  EXPECT_EQ(plan().resident, 0);
  input_.rules.state = all_state_on(Tier::kGpu, input_.units);
  EXPECT_EQ(plan().params_on_nvme, 0);
}

TEST_P(PlacementRulesTest, KeepsOrRecomputesAsItIsTold) {
  input_.rules.recompute = Tristate::kOff;
  EXPECT_EQ(plan().kept, kBlocks);
  input_.rules.recompute = Tristate::kOn;
  EXPECT_EQ(plan().kept, 0);
}

TEST_P(PlacementRulesTest, SendsInputsAwayAsItIsTold) {
  input_.unit_input_slots = 3;
  input_.rules.recompute = Tristate::kOn;
  input_.rules.unit_inputs_to_cpu = Tristate::kOn;
  EXPECT_EQ(plan().offloaded, kBlocks - 3);
  input_.rules.unit_inputs_to_cpu = Tristate::kOff;
  EXPECT_EQ(plan().offloaded, 0);
}

TEST_P(PlacementRulesTest, SendsInputsToTheDrivesAsItIsTold) {
  input_.unit_input_slots = 3;
  input_.rules.recompute = Tristate::kOn;
  input_.rules.unit_inputs_to_nvme = Tristate::kOn;
  EXPECT_EQ(plan().spilled, kBlocks - 3);
  EXPECT_EQ(plan().offloaded, 0);
  input_.rules.unit_inputs_to_nvme = Tristate::kOff;
  EXPECT_EQ(plan().spilled, 0);
}

// Rules are not relaxed when the placement does not fit.
TEST_P(PlacementRulesTest, ObeysEvenWhereItDoesNotFit) {
  input_.rules.state = all_state_on(Tier::kCpu, input_.units);
  input_.rules.params = Tier::kCpu;
  input_.budget.cpu = 1'000'000;
  const auto plan = plan_placement(input_);
  ASSERT_TRUE(plan.ok());
  EXPECT_FALSE(plan->fits);
  EXPECT_EQ(Totals(plan->places).cpu, Totals(plan->places).all);
  EXPECT_GT(plan->missing.cpu, 0);
  EXPECT_FALSE(fit_hints(input_).empty());
}

TEST_P(PlacementRulesTest, RefusesRulesThatContradictEachOther) {
  input_.rules.recompute = Tristate::kOff;
  input_.rules.unit_inputs_to_cpu = Tristate::kOn;
  EXPECT_FALSE(plan_placement(input_).ok());
  input_.rules.unit_inputs_to_cpu = Tristate::kAuto;
  input_.rules.unit_inputs_to_nvme = Tristate::kOn;
  EXPECT_FALSE(plan_placement(input_).ok());
  input_.rules = {.state = all_state_on(Tier::kCpu, input_.units)};
  ++input_.rules.state[1].nvme;
  EXPECT_FALSE(plan_placement(input_).ok());
  input_.rules.state.pop_back();
  EXPECT_FALSE(plan_placement(input_).ok());
  input_.rules = {};
  input_.units.clear();
  EXPECT_FALSE(plan_placement(input_).ok());
}

INSTANTIATE_TEST_SUITE_P(Seeds, PlacementRulesTest, testing::Values(1, 2, 3));

}  // namespace
}  // namespace sluice::offload
