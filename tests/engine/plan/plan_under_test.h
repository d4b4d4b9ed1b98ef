// Configurations of models, as files, and a machine whose speeds are given: what plans are tested
// with, so that nothing is measured.
#pragma once

#include <stdexcept>
#include <string>
#include <vector>

#include "engine/config/resolve.h"
#include "engine/plan/planner_input.h"
#include "engine/plan/run_plan.h"

namespace sluice::engine {

// All that a run file leaves open is left to the plan.
inline config::Config planned_config(const std::vector<std::string>& overrides) {
  config::Sources sources;
  sources.run_file = config::Source{"test", R"({
    "train_micro_batch_size_per_gpu": 4,
    "bf16": {"enabled": true},
    "zero_optimization": {"stage": 3, "offload_param": {"device": "auto"},
                          "offload_optimizer": {"device": "auto"}},
    "model": {"preset": "gpt2-xl"},
    "data": {"train": ["train.bin"]},
    "run": {"cpu_threads": 1},
    "budget": {"nvme_paths": ["nvme"]}
  })"};
  sources.overrides = overrides;
  auto resolved = config::resolve(sources);
  if (!resolved.ok()) throw std::runtime_error(resolved.error().message());
  return resolved->config;
}

inline std::vector<std::string> shape(int layers, int hidden, int heads, int vocab = 50257) {
  const auto is = [](const char* key, int value) {
    return std::string("model.") + key + "=" + std::to_string(value);
  };
  return {"model.preset=custom", is("layers", layers), is("hidden", hidden),
          is("heads", heads),    is("vocab", vocab),   is("context", 1024)};
}

inline std::vector<std::string> operator+(std::vector<std::string> a,
                                          const std::vector<std::string>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// Everything is described: a card of 24 GB, a good host and a drive.
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
