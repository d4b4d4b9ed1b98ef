// The planner's input and the memory plan count the same bytes for any placement.
#include "engine/plan/planner_input.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "engine/budget/configured_model.h"
#include "engine/budget/resolved_placement.h"
#include "offload/planner/placement_planner.h"
#include "tests/engine/plan/plan_under_test.h"
#include "tests/engine/random_places.h"

namespace sluice::engine {
namespace {

using offload::ActivationPlace;
using offload::TierBytes;
using offload::UnitPlacement;

struct Case {
  const char* name;
  std::vector<std::string> overrides;

  friend std::ostream& operator<<(std::ostream& out, const Case& it) { return out << it.name; }
};

class PlannerInputTest : public testing::TestWithParam<Case> {
 protected:
  PlannerInputTest()
      : config_(planned_config(GetParam().overrides)), model_(configured_layout(config_, true)) {
    machine_.units = UnitTimes(model_);
  }

  offload::PlannerInput input() {
    const auto made =
        planner_input({.config = config_,
                       .model = model_,
                       .machine = machine_,
                       .on_gpu = true,
                       .budget = {.gpu = 1ULL << 40, .cpu = 1ULL << 42, .nvme = 1ULL << 44}});
    EXPECT_TRUE(made.ok()) << made.error().message();
    return *made;
  }

  MemoryPlan memory(const std::vector<UnitPlacement>& places) {
    const auto plan = plan_memory(config_, model_,
                                  {.on_gpu = true, .gpu_room_bytes = 1ULL << 40, .places = places});
    EXPECT_TRUE(plan.ok()) << plan.error().message();
    return *plan;
  }

  config::Config config_;
  ModelLayout model_;
  ProbeReport machine_;
};

void expect_agreement(const offload::PlannerInput& input, const std::vector<UnitPlacement>& places,
                      const MemoryPlan& memory) {
  const TierBytes ledger = input.ledger->bytes(places);
  const TierBytes plan = used_by(memory);
  EXPECT_EQ(ledger.gpu, plan.gpu);
  EXPECT_EQ(ledger.cpu, plan.cpu);
  EXPECT_EQ(ledger.nvme, plan.nvme);
}

TEST_P(PlannerInputTest, CountsWhatTheMemoryPlanCountsWhateverThePlacement) {
  const std::uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  RandomPlaces random(seed);
  const offload::PlannerInput input = this->input();
  EXPECT_THAT(input.units.back().lenders, testing::ElementsAre(0));  // the head is tied
  for (int round = 0; round < 60 && !HasFailure(); ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    const std::vector<UnitPlacement> places = random.of(model_);
    expect_agreement(input, places, memory(places));
  }
}

TEST_P(PlannerInputTest, CountsWhatThePlannerChoosesByTheRulesOfTheFile) {
  offload::PlannerInput input = this->input();
  const offload::LeanestPlacement some = offload::leanest_placement(input);
  expect_agreement(input, some.places, memory(some.places));
}

const std::vector<std::string> kSmall = shape(6, 256, 4, 5003);

INSTANTIATE_TEST_SUITE_P(
    Models, PlannerInputTest,
    testing::Values(Case{"xl", {}}, Case{"xl_fp16", {"fp16.enabled=true", "bf16.enabled=false"}},
                    Case{"xl_fp32", {"bf16.enabled=false"}},
                    Case{"xl_accumulated", {"gradient_accumulation_steps=4"}},
                    Case{"billions", shape(40, 2560, 32)}, Case{"wide", shape(8, 5120, 40)},
                    Case{"small", kSmall},
                    Case{"small_fp32", kSmall + std::vector<std::string>{"bf16.enabled=false"}},
                    Case{"one_block", shape(1, 256, 4, 999)},
                    Case{"short_records", {"placement.record_elements=1000000"}},
                    Case{"llama", {"model.preset=qwen2.5-1.5b"}},
                    Case{"long",
                         {"model.preset=qwen2.5-1.5b", "train_micro_batch_size_per_gpu=1",
                          "model.context=131072", "data.sequence_length=131072"}},
                    Case{"adapters", {"model.preset=qwen2.5-1.5b", "recipe.lora.rank=8"}},
                    Case{"two_drives", {R"(budget.nvme_paths=["nvme0","nvme1"])"}}),
    [](const auto& it) { return std::string(it.param.name); });

// ---- for any budget -------------------------------------------------------------------------

struct Fitted {
  RunPlan plan;
  bool within = false;
};

// Plans for a described GPU, or for the host.
Fitted fitted(const std::vector<std::string>& overrides, double gpu_gib, double cpu_gib) {
  DescribedMachine machine = described(gpu_gib);
  machine.cpu_gib = cpu_gib;
  Fitted it{.plan = planned(planned_config(overrides), {.machine = machine})};
  it.within = used_by(it.plan.memory).within(it.plan.input.budget);
  return it;
}

// Moments of 16 bits: the bytes that cross the drives and DRAM in a step, and the state's size.
TEST(PlannerInput, KeepsFewerInputsOnTheGpuIfPassesAreLong) {
  const auto slots = [](int tokens) {
    const config::Config config =
        planned_config({"model.preset=qwen2.5-1.5b", "train_micro_batch_size_per_gpu=1",
                        "model.context=131072", "data.sequence_length=" + std::to_string(tokens)});
    const ModelLayout model = configured_layout(config, true);
    ProbeReport machine;
    machine.units = UnitTimes(model);
    return planner_input(
               {.config = config, .model = model, .machine = machine, .on_gpu = true, .budget = {}})
        ->unit_input_slots;
  };
  EXPECT_EQ(slots(32768), 4);
  EXPECT_EQ(slots(32769), 2);
}

TEST(PlannerInput, CountsTheBytesOfMomentsAsTheyAreStored) {
  const auto step_bytes = [](const std::vector<std::string>& overrides) {
    const config::Config config = planned_config(overrides);
    const ModelLayout model = configured_layout(config, true);
    ProbeReport machine;
    machine.units = UnitTimes(model);
    const auto made = planner_input({.config = config,
                                     .model = model,
                                     .machine = machine,
                                     .on_gpu = true,
                                     .budget = {.gpu = 1ULL << 40, .cpu = 1ULL << 42}});
    EXPECT_TRUE(made.ok()) << made.error().message();
    return made->step.bytes;
  };
  const auto wide = step_bytes({});
  const auto narrow = step_bytes({"optimizer.params.moments=bf16"});
  EXPECT_EQ(wide.nvme_read, 10);
  EXPECT_EQ(narrow.nvme_read, 6);
  EXPECT_EQ(narrow.nvme_write, 6);
  EXPECT_EQ(wide.cpu_adamw_dram - narrow.cpu_adamw_dram, 8);
  EXPECT_EQ(step_bytes({"bf16.enabled=false", "optimizer.params.moments=bf16"}).nvme_read, 4);
}

TEST(PlanWithinBudget, CountsSlotsAsThePlannerDid) {
  const std::vector<std::string> overrides =
      shape(24, 1024, 16) + std::vector<std::string>{"zero_optimization.offload_param.device=cpu",
                                                     "gradient_accumulation_steps=8"};
  int fitting = 0;
  for (double gpu_gib = 1.5; gpu_gib < 9; gpu_gib += 0.5) {
    const Fitted it = fitted(overrides, gpu_gib, 64);
    if (!it.plan.placement.fits) continue;
    ++fitting;
    EXPECT_TRUE(it.within) << gpu_gib << " GiB";
    EXPECT_EQ(used_by(it.plan.memory).gpu, it.plan.placement.used.gpu) << gpu_gib << " GiB";
  }
  EXPECT_GT(fitting, 5);
}

TEST(PlanWithinBudget, CountsWhatTheHostKeepsWhereItComputes) {
  for (const char* recompute : {"on", "off", "auto"}) {
    const config::Config config =
        planned_config(shape(6, 256, 4, 5003) +
                       std::vector<std::string>{"run.device=cpu",
                                                std::string("placement.recompute=") + recompute});
    const ModelLayout model = configured_layout(config, /*on_gpu=*/false);
    ProbeReport machine;
    machine.units = UnitTimes(model);
    machine.speeds.cpu_adamw_elements_per_s = 1e9;
    machine.speeds.drives = {6e9, 4e9, 3e9, 2e9};
    const auto input = planner_input({.config = config,
                                      .model = model,
                                      .machine = machine,
                                      .budget = {.cpu = 1ULL << 40, .nvme = 1ULL << 40}});
    ASSERT_TRUE(input.ok());
    const auto plan = offload::plan_placement(*input);
    ASSERT_TRUE(plan.ok() && plan->fits) << recompute;
    const auto memory = plan_memory(config, model, {.places = plan->places});
    ASSERT_TRUE(memory.ok());
    EXPECT_EQ(used_by(*memory).cpu, plan->used.cpu) << recompute;
  }
}

// ---- explicit settings ----------------------------------------------------------------------

void expect_devices(const RunSpec& spec, const std::vector<UnitPlacement>& places) {
  const config::Config& config = spec.config;
  const std::vector<bool> persistent = persistent_units(spec);
  using config::OffloadDevice;
  double gpu = 0, cpu = 0, nvme = 0;
  for (std::size_t unit = 0; unit < places.size(); ++unit) {
    const UnitPlacement& place = places[unit];
    gpu += static_cast<double>(place.gpu_elements);
    cpu += static_cast<double>(place.cpu_elements);
    nvme += static_cast<double>(place.nvme_elements);
    const bool on_host = place.cpu_elements + place.nvme_elements > 0;
    const OffloadDevice params = config.zero.offload_param.device;
    EXPECT_TRUE(params != OffloadDevice::kNone || place.resident);
    EXPECT_TRUE(params == OffloadDevice::kNvme || params == OffloadDevice::kAuto ||
                !place.params_on_nvme);
    EXPECT_TRUE(params != OffloadDevice::kNvme || !on_host ||
                place.params_on_nvme != persistent[unit]);
  }
  const double all = gpu + cpu + nvme;
  const OffloadDevice device = config.zero.offload_optimizer.device;
  constexpr double kOneSubGroup = 0.03;  // a tier's share is a number of whole sub-groups
  if (config.placement.optimizer_fractions) {
    EXPECT_NEAR(gpu / all, config.placement.optimizer_fractions->gpu, kOneSubGroup);
    EXPECT_NEAR(nvme / all, config.placement.optimizer_fractions->nvme, kOneSubGroup);
  } else if (device == OffloadDevice::kNone) {
    EXPECT_EQ(gpu, all);
  } else {
    const double on_device = device == OffloadDevice::kCpu ? cpu : nvme;
    EXPECT_NEAR(on_device / all, config.zero.offload_optimizer.ratio, kOneSubGroup);
    EXPECT_EQ(on_device + gpu, all);
  }
}

class PlannerInputRulesTest : public PlannerInputTest {};

TEST_P(PlannerInputRulesTest, ObeysWhatIsNamedAndCountsItAsTheMemoryPlanDoes) {
  machine_.speeds = {.bus = {2e10, 2e10, 2e10, 2e10},
                     .drives = {6e9, 4e9, 3e9, 2e9},
                     .host_copy_bytes_per_s = 8e10,
                     .cpu_adamw_elements_per_s = 2e9,
                     .gpu_copy_bytes_per_s = 8e11,
                     .gpu_adamw_elements_per_s = 3e10,
                     .gpu_matmul_flops_per_s = 1e14};
  const offload::PlannerInput input = this->input();
  const auto plan = offload::plan_placement(input);
  ASSERT_TRUE(plan.ok()) << plan.error().message();
  ASSERT_TRUE(plan->fits);
  expect_devices({.config = config_, .model = model_, .on_gpu = true}, plan->places);
  const MemoryPlan memory = this->memory(plan->places);
  expect_agreement(input, plan->places, memory);
  const std::vector<offload::TierElements> run =
      tier_elements(model_.units(), memory.state.optimizer.placement);
  for (std::size_t unit = 0; unit < run.size(); ++unit) {
    const UnitPlacement& place = plan->places[unit];
    EXPECT_EQ(run[unit].gpu, place.gpu_elements) << unit;
    EXPECT_EQ(run[unit].cpu, place.cpu_elements) << unit;
    EXPECT_EQ(run[unit].nvme, place.nvme_elements) << unit;
    EXPECT_EQ(memory.activations.kept[unit], place.activations == ActivationPlace::kKeep) << unit;
  }
}

std::vector<std::string> devices(const std::string& params, const std::string& optimizer,
                                 const std::vector<std::string>& more = {}) {
  return std::vector<std::string>{"zero_optimization.offload_param.device=" + params,
                                  "zero_optimization.offload_optimizer.device=" + optimizer} +
         more;
}

INSTANTIATE_TEST_SUITE_P(
    Named, PlannerInputRulesTest,
    testing::Values(
        Case{"cpu_cpu", devices("cpu", "cpu")}, Case{"nvme_nvme", devices("nvme", "nvme")},
        Case{"none_none", devices("none", "none")}, Case{"none_cpu", devices("none", "cpu")},
        Case{"cpu_nvme", devices("cpu", "nvme")}, Case{"nvme_cpu", devices("nvme", "cpu")},
        Case{"auto_nvme", devices("auto", "nvme")}, Case{"none_nvme", devices("none", "nvme")},
        Case{"cpu_none", devices("cpu", "none")},
        Case{"ratio", devices("auto", "cpu", {"zero_optimization.offload_optimizer.ratio=0.6"})},
        Case{"ratio_small_sub_groups", devices("none", "cpu",
                                               {"zero_optimization.offload_optimizer.ratio=0.3",
                                                "zero_optimization.sub_group_size=1e6"})},
        Case{"fractions",
             devices("auto", "auto",
                     {R"(placement.optimizer_fractions={"gpu": 0.2, "cpu": 0.5, "nvme": 0.3})"})},
        Case{"fractions_large_sub_groups",
             devices("nvme", "auto",
                     {R"(placement.optimizer_fractions={"gpu": 0.4, "cpu": 0.35, "nvme": 0.25})",
                      "zero_optimization.sub_group_size=1e9"})},
        Case{"kept", devices("auto", "cpu", {"placement.recompute=off"})},
        Case{"recomputed", devices("auto", "cpu", {"placement.recompute=on"})},
        Case{"inputs_leave", devices("cpu", "cpu", {"placement.unit_inputs_to_cpu=on"})},
        Case{"inputs_leave_accumulated",
             devices("none", "cpu",
                     {"placement.unit_inputs_to_cpu=on", "gradient_accumulation_steps=3",
                      "placement.prefetch_units=4"})}),
    [](const auto& it) { return std::string(it.param.name); });

}  // namespace
}  // namespace sluice::engine
