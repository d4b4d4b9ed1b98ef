// A machine with given speeds, so that nothing is measured, and its plans.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <stdexcept>
#include <utility>

#include "aio/units.h"
#include "engine/plan/planner_input.h"
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

}  // namespace sluice::engine
