// A machine with given speeds, so that nothing is measured, and its plans.
#pragma once

#include <stdexcept>

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

}  // namespace sluice::engine
