// Plans for described machines, and for runs that compute on the CPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "engine/plan/report/plan_report.h"
#include "engine/plan/run_plan.h"
#include "tests/aio/backends_under_test.h"
#include "tests/engine/plan/plan_under_test.h"

namespace sluice::engine {
namespace {

using offload::FitHint;
using testing::HasSubstr;
using testing::Not;

TEST(RunPlan, MeasuresNothingOfWhatIsDescribed) {
  std::vector<std::string> measured;
  const auto remember = [&](const std::string& what, double) { measured.push_back(what); };
  const aio::TemporaryFolder folder;
  const config::Config config =
      planned_config({"budget.nvme_paths=[\"" + folder.file("nvme") + "\"]"});
  const RunPlan plan = planned(
      config,
      {.cache_path = folder.file("speeds.json"), .machine = described(), .on_progress = remember});
  EXPECT_EQ(measured, std::vector<std::string>());
  EXPECT_FALSE(std::filesystem::exists(folder.file("speeds.json")));
  EXPECT_FALSE(std::filesystem::exists(folder.file("nvme")));
  const offload::MachineSpeeds& speeds = plan.machine.speeds;
  // The shares of the data sheet's rates that the plan names.
  EXPECT_NEAR(speeds.bus.in_bytes_per_s, 0.86 * 22e9, 1);
  EXPECT_NEAR(speeds.gpu_matmul_flops_per_s, 0.92 * 100e12, 1);
  EXPECT_NEAR(speeds.gpu_copy_bytes_per_s, 0.9 * 800e9, 1);
  EXPECT_EQ(speeds.host_copy_bytes_per_s, 80e9);
  EXPECT_GT(speeds.cpu_adamw_elements_per_s, 0);
  EXPECT_EQ(speeds.drives.in_bytes_per_s, 6e9);
  EXPECT_EQ(speeds.drives.out_bytes_per_s, 4e9);
  EXPECT_TRUE(plan.machine.assumed.empty() && plan.machine.from_here.empty());
  EXPECT_TRUE(plan.machine.gpu_when.estimated && plan.machine.units_when.estimated &&
              plan.machine.host_when.estimated && plan.machine.drives_when.estimated);
}

TEST(RunPlan, AssumesACardOf24GBWhereOnlyItsSpeedIsDescribed) {
  DescribedMachine fast = described();
  fast.gpu_gib.reset();
  const RunPlan plan = planned(planned_config({}), {.machine = fast});
  EXPECT_GT(plan.input.budget.gpu, gib(22));
  EXPECT_LT(plan.input.budget.gpu, gib(24));
}

// With the run's own folder, which need not exist on this machine.
TEST(RunPlan, AssumesTheDriveOfADescribedGpuThatIsNotHere) {
  const aio::TemporaryFolder folder;
  DescribedMachine machine = described(8);
  machine.cpu_gib = 12;
  machine.nvme_gib = machine.drive_read_gb_per_s = machine.drive_write_gb_per_s = std::nullopt;
  const RunPlan plan =
      planned(planned_config({"budget.nvme_paths=[\"" + folder.file("nvme") + "\"]"}),
              {.machine = machine});
  EXPECT_EQ(plan.machine.speeds.drives.in_bytes_per_s, 6e9);
  EXPECT_EQ(plan.machine.speeds.drives.out_bytes_per_s, 3e9);
  EXPECT_THAT(plan.machine.assumed, testing::ElementsAre(testing::HasSubstr("900 GiB"),
                                                         testing::HasSubstr("reads 6 GB/s"),
                                                         testing::HasSubstr("writes of 3 GB/s")));
  EXPECT_TRUE(plan.machine.from_here.empty());
  EXPECT_TRUE(plan.drive_tbw_assumed);
  EXPECT_EQ(plan.drive_tbw, 600);
  EXPECT_FALSE(std::filesystem::exists(folder.file("nvme")));
}

TEST(RunPlan, TakesNoRateOf16BitsForARunInFp32) {
  DescribedMachine machine = described();
  machine.tflops.reset();
  const auto plan = plan_run(planned_config({"bf16.enabled=false"}), {.machine = machine});
  ASSERT_FALSE(plan.ok());
  EXPECT_THAT(plan.error().message(), testing::HasSubstr("give its fp32 speed"));
  EXPECT_TRUE(plan_run(planned_config({}), {.machine = machine}).ok());
}

TEST(RunPlan, PlansForADriveThatIsOnlyDescribed) {
  DescribedMachine little = described(8);
  little.cpu_gib = 12;
  const RunPlan plan = planned(planned_config({"budget.nvme_paths=[]"}), {.machine = little});
  EXPECT_TRUE(plan.placement.fits);
  EXPECT_GT(plan.memory.nvme_bytes(), 0);
}

// A base of 8 billion parameters with few trained parameters: in each pass 16 bits per parameter go
// through the GPU, forward and backward, and have no state.
TEST(RunPlan, WeighsAFrozenBaseByWhatIsStreamed) {
  const std::vector<std::string> adapters = {"model.preset=qwen3-8b", "recipe.lora.rank=16",
                                             "data.sequence_length=1024"};
  const config::Config config = planned_config(adapters);
  const RunPlan plan = planned(config, {.machine = described()});
  ASSERT_TRUE(plan.placement.fits) << does_not_fit(config, plan);
  expect_within(plan, described());
  ASSERT_TRUE(plan.memory.base);
  EXPECT_LT(plan.trained, plan.parameters / 100);
  double streamed = 0;
  for (std::size_t unit = 0; unit < plan.input.units.size(); ++unit)
    if (!plan.placement.places[unit].resident)
      streamed += 2 * static_cast<double>(plan.input.units[unit].frozen_elements);
  const double h2d = plan.placement.prediction.h2d_bytes;
  EXPECT_GT(h2d, 1.5 * streamed);  // what is still in a slot is not copied again
  EXPECT_LT(h2d, 2.2 * streamed + 1e9);
  EXPECT_EQ(plan.placement.prediction.nvme_write_bytes, 0);
  // With less RAM than the base needs outside the GPU, it is read from the drive in each pass, and
  // never written.
  DescribedMachine small = described();
  small.cpu_gib = 5;
  const RunPlan from_drive = planned(config, {.machine = small});
  ASSERT_TRUE(from_drive.placement.fits) << does_not_fit(config, from_drive);
  expect_within(from_drive, small);
  EXPECT_GT(from_drive.placement.prediction.nvme_read_bytes, 1e9);
  EXPECT_EQ(from_drive.placement.prediction.nvme_write_bytes, 0);
  // Full training would need more for its state alone than both have.
  DescribedMachine without_drive = described();
  without_drive.nvme_gib = 0;
  EXPECT_FALSE(planned(planned_config({"model.preset=qwen3-8b", "data.sequence_length=1024"}),
                       {.machine = without_drive})
                   .placement.fits);
  // And the report's text.
  const std::string report = format_plan(config, plan, {});
  EXPECT_THAT(report, HasSubstr("8.19B parameters, and 43.65M of adapters"));
  EXPECT_THAT(report, Not(HasSubstr("DeepSpeed's estimate")));
  EXPECT_THAT(report, Not(HasSubstr("can be pinned")));
  RunPlan limited = plan;
  limited.machine.pin = {.tried_bytes = 2.0 * kGiB, .pinned_bytes = 512.0 * kMiB};
  EXPECT_THAT(format_plan(config, limited, {}), HasSubstr("512M of host memory"));
}

TEST(RunPlan, GetsFasterWithTheMachine) {
  const auto step_s = [](const DescribedMachine& machine) {
    return planned(planned_config({}), {.machine = machine}).placement.prediction.step_s;
  };
  DescribedMachine machine = described(12);
  const double before = step_s(machine);
  machine.bus_gb_per_s = *machine.bus_gb_per_s / 8;
  const double slow_bus = step_s(machine);
  EXPECT_GT(slow_bus, 1.02 * before);
  machine.tflops = 400;
  EXPECT_LT(step_s(machine), slow_bus);
}

// ---- the CPU ----------------------------------------------------------------------------------

std::vector<std::string> on_the_cpu(const aio::TemporaryFolder& folder, double cpu_gib) {
  return shape(4, 256, 4, 5003) +
         std::vector<std::string>{"run.device=cpu",
                                  "train_micro_batch_size_per_gpu=1",
                                  "data.sequence_length=64",
                                  "placement.record_elements=65536",
                                  "budget.cpu_gib=" + std::to_string(cpu_gib),
                                  "budget.nvme_gib=4",
                                  "budget.nvme_paths=[\"" + folder.file("nvme") + "\"]"};
}

// Everything is described except for the units' times.
RunPlan plan_for_the_cpu(const config::Config& config, const aio::TemporaryFolder& folder) {
  return planned(config, {.cache_path = folder.file("speeds.json"),
                          .machine = {.ram_gb_per_s = 20, .drive_read_gb_per_s = 2}});
}

void expect_nothing_on_the_gpu(const RunPlan& plan) {
  EXPECT_FALSE(plan.memory.cuda);
  EXPECT_TRUE(plan.memory.gpu.empty());
  for (const offload::UnitPlacement& place : plan.placement.places)
    EXPECT_EQ(place.gpu_elements, 0);
  for (const offload::SubGroup& it : plan.memory.state.optimizer.placement)
    EXPECT_NE(it.tier, offload::Tier::kGpu);
  for (const offload::ParamUnit& it : plan.memory.params.options.units)
    EXPECT_NE(it.tier, offload::Tier::kGpu);
  EXPECT_EQ(plan.placement.prediction.h2d_bytes, 0);
}

TEST(RunPlanCpu, KeepsStateInRamWhereItFitsAndOnNvmeWhereNot) {
  const aio::TemporaryFolder folder;
  const RunPlan much = plan_for_the_cpu(planned_config(on_the_cpu(folder, 4)), folder);
  ASSERT_TRUE(much.placement.fits);
  expect_nothing_on_the_gpu(much);
  EXPECT_EQ(much.memory.nvme_bytes(), 0);
  // Just below what that took.
  const double less_gib = static_cast<double>(much.memory.host_bytes() - 20 * kMiB) / kGiB;
  const config::Config config = planned_config(on_the_cpu(folder, less_gib));
  const RunPlan less = plan_for_the_cpu(config, folder);
  ASSERT_TRUE(less.placement.fits) << does_not_fit(config, less);
  expect_nothing_on_the_gpu(less);
  EXPECT_GT(less.memory.nvme_bytes(), 0);
  EXPECT_LE(less.memory.host_bytes(), gib(less_gib));
}

// The base is in RAM or on the drive, and nowhere else.
TEST(RunPlanCpu, CountsAFrozenBaseWhereTheHostComputes) {
  const aio::TemporaryFolder folder;
  for (const double cpu_gib : {4.0, 1.2}) {
    std::vector<std::string> overrides = on_the_cpu(folder, cpu_gib);
    std::erase_if(overrides, [](const std::string& it) { return it.starts_with("model."); });
    // One block and a small head are timed, since bf16 products are slow on many hosts. 1 GiB of
    // it.
    for (const char* const more :
         {"model.preset=custom", "model.family=llama", "model.architecture=qwen3",
          "model.layers=120", "model.hidden=512", "model.heads=8", "model.kv_heads=8",
          "model.head_dim=64", "model.ffn_multiplier=4", "model.vocab=1000", "model.context=64",
          "model.dropout=0", "recipe.lora.rank=4", "data.sequence_length=8"})
      overrides.emplace_back(more);
    const RunPlan plan = plan_for_the_cpu(planned_config(overrides), folder);
    ASSERT_TRUE(plan.placement.fits) << cpu_gib;
    EXPECT_EQ(plan.placement.used.cpu, plan.memory.host_bytes()) << cpu_gib;
    EXPECT_EQ(plan.placement.used.nvme, plan.memory.nvme_bytes()) << cpu_gib;
    EXPECT_LE(plan.memory.host_bytes(), gib(cpu_gib));
    EXPECT_EQ(plan.memory.nvme_bytes() > 0, cpu_gib < 2);
  }
}

TEST(RunPlanCpu, NeverAsksForAGpu) {
  const aio::TemporaryFolder folder;
  std::vector<std::string> overrides = on_the_cpu(folder, 0.3);
  overrides.push_back("budget.nvme_paths=[]");
  const config::Config config = planned_config(overrides);
  const RunPlan plan = plan_for_the_cpu(config, folder);
  ASSERT_FALSE(plan.placement.fits);
  ASSERT_FALSE(plan.hints.empty());
  for (const FitHint& hint : plan.hints) EXPECT_NE(hint.change, FitHint::Change::kMoreGpu);
  EXPECT_EQ(does_not_fit(config, plan).find("GPU"), std::string::npos);
}

// DeepSpeed's "none" means RAM there.
TEST(RunPlanCpu, TakesTheGpusShareIntoRam) {
  const aio::TemporaryFolder folder;
  std::vector<std::string> overrides = on_the_cpu(folder, 4);
  overrides.push_back("zero_optimization.offload_optimizer.device=none");
  overrides.push_back("zero_optimization.offload_param.device=none");
  const RunPlan plan = plan_for_the_cpu(planned_config(overrides), folder);
  EXPECT_TRUE(plan.placement.fits);
  expect_nothing_on_the_gpu(plan);
  EXPECT_EQ(plan.memory.nvme_bytes(), 0);
}

}  // namespace
}  // namespace sluice::engine
