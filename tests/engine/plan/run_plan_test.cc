// Plans of whole runs: hard budgets, and hints that suffice.
#include "engine/plan/run_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "aio/units.h"
#include "engine/plan/report/plan_report.h"
#include "tests/engine/plan/plan_under_test.h"

namespace sluice::engine {
namespace {

using testing::HasSubstr;
using Change = offload::FitHint::Change;
using offload::FitHint;

struct Model {
  const char* name;
  std::vector<std::string> overrides;
};

const std::vector<Model>& models() {
  static const std::vector<Model> all = {
      {"XL", {}},
      {"3.3B", shape(40, 2560, 32)},
      {"13B", shape(40, 5120, 40)},
  };
  return all;
}

// Returns whether it fits.
bool check(const std::vector<std::string>& overrides, const DescribedMachine& machine) {
  const config::Config config = planned_config(overrides);
  const RunPlan plan = planned(config, {.machine = machine});
  if (plan.placement.fits) {
    expect_within(plan, machine);
    return true;
  }
  EXPECT_FALSE(plan.hints.empty());
  EXPECT_GT(plan.placement.missing.total(), 0);
  EXPECT_NE(does_not_fit(config, plan).find("It would fit with "), std::string::npos);
  expect_hints_to_be_enough(plan, machine, overrides);
  return false;
}

void sweep(const std::vector<int>& gpus_gib) {
  for (const Model& model : models()) {
    bool fitted = false;
    for (const int gpu_gib : gpus_gib) {
      SCOPED_TRACE(std::string(model.name) + " on " + std::to_string(gpu_gib) + " GiB");
      const bool fits = check(model.overrides, described(gpu_gib));
      EXPECT_TRUE(fits || !fitted) << "fitted on less";
      fitted = fits;
    }
    EXPECT_TRUE(fitted) << model.name;
  }
}

TEST(RunPlan, StaysWithinEveryBudgetOrNamesWhatIsEnough) { sweep({1, 2, 4, 6, 12, 24, 40}); }

TEST(LongRunPlan, StaysWithinEveryBudgetOrNamesWhatIsEnough) {
  std::vector<int> gpus_gib;
  for (int gpu_gib = 1; gpu_gib <= 40; ++gpu_gib) gpus_gib.push_back(gpu_gib);
  sweep(gpus_gib);
}

TEST(RunPlan, NamesWhatIsEnoughWhereRamOrDrivesAreShort) {
  const std::vector<std::string> devices = {"zero_optimization.offload_param.device=cpu",
                                            "zero_optimization.offload_optimizer.device=cpu"};
  DescribedMachine little = described(24);
  little.cpu_gib = 12;
  EXPECT_FALSE(check(devices, little));
  EXPECT_TRUE(check({}, little));  // on NVMe
  little.nvme_gib = 1;
  little.gpu_gib = 8;
  EXPECT_FALSE(check({}, little));
}

// A drive can be added to most machines.
TEST(RunPlan, NamesADriveWhereNoFolderWasNamed) {
  const std::vector<std::string> no_folder = {"budget.nvme_paths=[]"};
  int named = 0;
  for (const Model& model : models()) {
    for (const double cpu_gib : {8, 40}) {
      SCOPED_TRACE(std::string(model.name) + ", " + std::to_string(cpu_gib) + " GiB of RAM");
      DescribedMachine machine = described(12);
      machine.cpu_gib = cpu_gib;
      machine.nvme_gib.reset();
      const std::vector<std::string> overrides = model.overrides + no_folder;
      if (check(overrides, machine)) continue;  // each hint suffices
      const config::Config config = planned_config(overrides);
      const std::string text = does_not_fit(config, planned(config, {.machine = machine}));
      named += static_cast<int>(text.find("a folder on a local drive with ") != std::string::npos);
    }
  }
  // XL and 3.3B with 8, 13B with 40; and 13B with 8, where its gradients go to the drive, too.
  EXPECT_EQ(named, 4);
}

const std::vector<std::string> kGradientsInRam = {"placement.gradients_to_nvme=off"};

// Their memory then holds state that would be on NVMe. They are written while backward computes.
TEST(RunPlan, MovesGradientsToNvmeIfThatIsFasterOrTheOnlyWay) {
  const std::vector<std::string> model = shape(40, 2560, 32);
  for (const double cpu_gib : {4, 12, 24, 64}) {
    SCOPED_TRACE(std::to_string(cpu_gib) + " GiB of RAM");
    DescribedMachine machine = described(12);
    machine.cpu_gib = cpu_gib;
    const RunPlan plan = planned(planned_config(model), {.machine = machine});
    const RunPlan in_ram = planned(planned_config(model + kGradientsInRam), {.machine = machine});
    ASSERT_TRUE(plan.placement.fits);
    expect_within(plan, machine);
    EXPECT_FALSE(in_ram.memory.gradients);
    EXPECT_EQ(in_ram.placement.fits, cpu_gib > 4);
    if (!in_ram.placement.fits) {
      EXPECT_TRUE(plan.memory.gradients);
    } else if (plan.memory.gradients) {
      EXPECT_LT(plan.placement.prediction.step_s, 0.98 * in_ram.placement.prediction.step_s);
    } else {
      EXPECT_EQ(plan.placement.prediction.step_s, in_ram.placement.prediction.step_s);
    }
    EXPECT_FALSE(cpu_gib == 64 && plan.memory.gradients);  // all state is in RAM
  }
}

TEST(RunPlan, NamesTheLeastHostMemoryThatWouldBeEnough) {
  for (const Model& model : models()) {
    SCOPED_TRACE(model.name);
    DescribedMachine machine = described(12);
    machine.cpu_gib = 40;
    const RunPlan plan = planned(planned_config(model.overrides), {.machine = machine});
    ASSERT_TRUE(plan.placement.fits);
    ASSERT_TRUE(plan.host_floor_bytes);
    const auto fits_in = [&](double share) {
      machine.cpu_gib = share * static_cast<double>(*plan.host_floor_bytes) / kGiB;
      return planned(planned_config(model.overrides), {.machine = machine}).placement.fits;
    };
    EXPECT_TRUE(fits_in(1.001));
    EXPECT_FALSE(fits_in(0.98));
  }
}

// State that was placed by name stays there, so no folder helps.
TEST(RunPlan, NamesNoDriveForStateThatMayNotGoThere) {
  DescribedMachine machine = described(12);
  machine.cpu_gib = 6.5;
  machine.nvme_gib.reset();
  const config::Config config =
      planned_config({"budget.nvme_paths=[]", "zero_optimization.offload_param.device=cpu",
                      "zero_optimization.offload_optimizer.device=cpu"});
  const RunPlan plan = planned(config, {.machine = machine});
  ASSERT_FALSE(plan.placement.fits);
  EXPECT_EQ(does_not_fit(config, plan).find("local drive"), std::string::npos);
}

TEST(RunPlan, NamesWhatIsEnoughWhereTheFileForbidsIt) {
  // All activations of XL are kept, on a small GPU.
  EXPECT_FALSE(check(
      {"placement.recompute=off", "data.sequence_length=1024", "train_micro_batch_size_per_gpu=16"},
      described(12)));
  EXPECT_FALSE(check({"zero_optimization.offload_optimizer.device=none"}, described(10)));
  EXPECT_FALSE(check({R"(placement.optimizer_fractions={"gpu": 0.9, "cpu": 0.1, "nvme": 0})"},
                     described(10)));
  EXPECT_FALSE(check({"zero_optimization.offload_param.device=none"}, {.gpu_gib = 4,
                                                                       .cpu_gib = 64,
                                                                       .nvme_gib = 500,
                                                                       .ram_gb_per_s = 80,
                                                                       .drive_read_gb_per_s = 6}));
}

// Memory kept between passes does not change; the rest is halved.
TEST(RunPlan, NamesASmallerMicroBatchWhereThatIsEnough) {
  const std::vector<std::string> large = {"train_micro_batch_size_per_gpu=512",
                                          "placement.unit_inputs_to_cpu=on"};
  // Each suffices; and if half does not, smaller ones are named.
  std::int64_t smallest = 256;
  for (const double gpu_gib : {18, 12, 9, 6}) {
    if (check(large, described(gpu_gib))) continue;
    const RunPlan plan = planned(planned_config(large), {.machine = described(gpu_gib)});
    for (const FitHint& it : plan.hints)
      if (it.change == Change::kSmallerMicroBatch) smallest = std::min(smallest, it.micro_batch);
  }
  EXPECT_LT(smallest, 128);
}

// It trains the same model, so it comes before changes that do not.
TEST(RunPlan, NamesSmallerWavesWhereThatIsEnough) {
  const std::vector<std::string> large = {
      "train_micro_batch_size_per_gpu=8", "gradient_accumulation_steps=64",
      "placement.wave_micro_batches=64", "placement.unit_inputs_to_cpu=off"};
  EXPECT_FALSE(check(large, described(10)));
  const config::Config config = planned_config(large);
  EXPECT_THAT(does_not_fit(config, planned(config, {.machine = described(10)})),
              HasSubstr("placement.wave_micro_batches "));
}

// However the state is moved, the large part is named, and what makes it smaller comes first.
TEST(RunPlan, NamesTheRemedyOfWhatIsLargeFirst) {
  const std::vector<std::string> large = {"train_micro_batch_size_per_gpu=512",
                                          "data.sequence_length=1024",
                                          "zero_optimization.offload_optimizer.device=none"};
  const config::Config config = planned_config(large);
  const std::string text = does_not_fit(config, planned(config, {.machine = described(30)}));
  EXPECT_THAT(text, testing::ContainsRegex("activations, [0-9.]+G.*train_micro_batch_size_per_gpu "
                                           "[0-9]+ .*gradient_accumulation_steps [0-9]+"))
      << text;
}

// More than the machine has needs another machine, not another setting.
TEST(RunPlan, NeverAdvisesABudgetThatTheMachineDoesNotHave) {
  const std::vector<std::string> devices = {"zero_optimization.offload_param.device=cpu",
                                            "zero_optimization.offload_optimizer.device=cpu"};
  DescribedMachine machine = described(24);
  machine.cpu_gib = 12;
  const config::Config config = planned_config(devices);
  const std::string text = does_not_fit(config, planned(config, {.machine = machine}));
  EXPECT_THAT(text, testing::Not(testing::HasSubstr("budget.cpu_gib")));
  EXPECT_THAT(text, testing::ContainsRegex("[0-9.]+ GiB of RAM .*12G."));
}

// DeepSpeed's keys would allow 48 blocks on the GPU: as many stay as fit.
TEST(RunPlan, HasAsManySlotsAsFitBesideTheRest) {
  const std::vector<std::string> devices = {"zero_optimization.offload_param.device=cpu",
                                            "zero_optimization.offload_optimizer.device=cpu",
                                            "zero_optimization.stage3_max_live_parameters=1e10",
                                            "zero_optimization.stage3_max_reuse_distance=1e10"};
  const RunPlan small = planned(planned_config(devices), {.machine = described(4)});
  const RunPlan large = planned(planned_config(devices), {.machine = described(24)});
  EXPECT_TRUE(small.placement.fits) << does_not_fit(planned_config(devices), small);
  EXPECT_LT(small.memory.fetching.block_slots, large.memory.fetching.block_slots);
  expect_within(small, described(4));
  EXPECT_LT(large.placement.prediction.h2d_bytes, small.placement.prediction.h2d_bytes);
}

// One sequence in a step.
std::vector<std::string> one_sequence(std::int64_t tokens) {
  return {"model.preset=llama3.2-1b", "train_micro_batch_size_per_gpu=1",
          "model.context=" + std::to_string(std::max<std::int64_t>(tokens, 131072)),
          "data.sequence_length=" + std::to_string(tokens)};
}

TEST(RunPlan, NamesTheLongestSequenceThatFits) {
  DescribedMachine machine = described(12);
  machine.cpu_gib = 24;
  const PlanRunOptions options = {.machine = machine, .with_longest_sequence = true};
  const config::Config config = planned_config(one_sequence(4096));
  const RunPlan plan = planned(config, options);
  ASSERT_TRUE(plan.longest_sequence.has_value());
  const std::int64_t longest = *plan.longest_sequence;
  EXPECT_GT(longest, 65536);
  EXPECT_THAT(format_plan(config, plan, {}),
              HasSubstr("longest sequence that fits: " + std::to_string(longest) + " tokens"));
  EXPECT_THAT(plan_json(config, plan, {}, {}),
              HasSubstr("\"longest_sequence\": " + std::to_string(longest)));
  // Whatever the planned run's length.
  const auto plan_of = [&](std::int64_t tokens) {
    return planned(planned_config(one_sequence(tokens)), options);
  };
  EXPECT_EQ(plan_of(longest).longest_sequence, longest);
  EXPECT_TRUE(plan_of(longest).placement.fits);
  const RunPlan longer = plan_of(longest + longest / 64);
  EXPECT_FALSE(longer.placement.fits);
  EXPECT_EQ(longer.longest_sequence, longest);
  EXPECT_FALSE(planned(config, {.machine = machine}).longest_sequence.has_value());
}

TEST(RunPlan, NoSequenceIsLongerThanLearnedPositions) {
  const RunPlan plan =
      planned(planned_config({}), {.machine = described(24), .with_longest_sequence = true});
  EXPECT_EQ(plan.longest_sequence, 1024);
}

}  // namespace
}  // namespace sluice::engine
