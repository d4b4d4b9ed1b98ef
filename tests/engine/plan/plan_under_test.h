// A machine with given speeds, so that nothing is measured, and its plans.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "aio/units.h"
#include "engine/plan/planner_input.h"
#include "engine/plan/report/plan_report.h"
#include "engine/plan/run_plan.h"
#include "tests/engine/planned_config.h"

namespace sluice::engine {

// A fully described machine: a GPU of 24 GB, a good host and a drive.
inline DescribedMachine described(double gpu_gib = 24) {
  return {.gpu_gib = gpu_gib,
          .cpu_gib = 64,
          .nvme_gib = 500,
          .bus_gb_per_s = 22,
          .tflops = 100,
          .gpu_memory_gb_per_s = 800,
          .ram_gb_per_s = 80,
          .drive_read_gb_per_s = 6,
          .drive_write_gb_per_s = 4};
}

inline RunPlan planned(const config::Config& config, const PlanRunOptions& options) {
  auto plan = plan_run(config, options);
  if (!plan.ok()) throw std::runtime_error(plan.error().message());
  return std::move(*plan);
}

inline offload::TierBytes used_by(const MemoryPlan& plan) {
  return {
      .gpu = plan.cuda ? plan.gpu_bytes() : 0, .cpu = plan.host_bytes(), .nvme = plan.nvme_bytes()};
}

inline std::uint64_t gib(double value) { return static_cast<std::uint64_t>(value * kGiB); }

inline void expect_within(const RunPlan& plan, const DescribedMachine& machine) {
  const offload::TierBytes used = used_by(plan.memory);
  EXPECT_LE(used.gpu, gib(*machine.gpu_gib));
  EXPECT_LE(used.cpu, gib(*machine.cpu_gib));
  EXPECT_LE(used.nvme, gib(*machine.nvme_gib));
  EXPECT_EQ(used.gpu, plan.placement.used.gpu);
  EXPECT_GT(plan.placement.prediction.step_s, 0);
  EXPECT_LT(plan.placement.prediction.step_s, 1e4);
}

// Applies the hint to the file or the machine.
inline void apply(const offload::FitHint& hint, const RunPlan& plan, DescribedMachine& machine,
                  std::vector<std::string>& overrides) {
  const auto more = [&](std::uint64_t budget) {
    return static_cast<double>(budget + hint.more_bytes) / kGiB;
  };
  const offload::TierBytes& budget = plan.input.budget;
  using Change = offload::FitHint::Change;
  switch (hint.change) {
    case Change::kMoreGpu:
      machine.gpu_gib = more(budget.gpu) / (1 - kGpuSlack);
      return;
    case Change::kMoreCpu:
      machine.cpu_gib = more(budget.cpu);
      return;
    case Change::kMoreNvme:
      machine.nvme_gib = more(budget.nvme);
      return;
    case Change::kRecompute:
      overrides.push_back("placement.recompute=on");
      return;
    case Change::kInputsToCpu:
      overrides.push_back("placement.unit_inputs_to_cpu=on");
      return;
    case Change::kOptimizerAnywhere:
      overrides.push_back("zero_optimization.offload_optimizer.device=auto");
      overrides.push_back("placement.optimizer_fractions=null");
      return;
    case Change::kParamsAnywhere:
      overrides.push_back("zero_optimization.offload_param.device=auto");
      return;
    case Change::kSmallerMicroBatch: {
      const config::Config config = planned_config(overrides);
      overrides.push_back("train_micro_batch_size_per_gpu=" + std::to_string(hint.micro_batch));
      overrides.push_back(
          "gradient_accumulation_steps=" +
          std::to_string(config.batch.accumulation * (config.batch.micro / hint.micro_batch)));
      return;
    }
    case Change::kSmallerWaves:
      overrides.push_back("placement.wave_micro_batches=" +
                          std::to_string(hint.wave_micro_batches));
      return;
    case Change::kShorterSequences:
      overrides.push_back("data.sequence_length=" + std::to_string(hint.sequence_tokens));
      return;
    case Change::kMoreAccumulation:
      overrides.push_back("gradient_accumulation_steps=" + std::to_string(hint.accumulation));
      return;
    case Change::kBf16Moments:
      overrides.push_back("optimizer.params.moments=bf16");
      return;
  }
}

// Each hint alone suffices.
inline void expect_hints_to_be_enough(const RunPlan& plan, const DescribedMachine& machine,
                                      const std::vector<std::string>& overrides) {
  for (const offload::FitHint& hint : plan.hints) {
    DescribedMachine changed = machine;
    std::vector<std::string> file = overrides;
    apply(hint, plan, changed, file);
    SCOPED_TRACE("hint " + std::to_string(static_cast<int>(hint.change)) + ", " +
                 format_bytes(hint.more_bytes));
    const RunPlan again = planned(planned_config(file), {.machine = changed});
    EXPECT_TRUE(again.placement.fits) << does_not_fit(planned_config(file), again);
    if (again.placement.fits) expect_within(again, changed);
  }
}

}  // namespace sluice::engine
