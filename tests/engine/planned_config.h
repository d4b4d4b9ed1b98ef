// Configurations of models, as run files, that leave the placement to the planner.
#pragma once

#include <stdexcept>
#include <string>
#include <vector>

#include "engine/config/resolve.h"

namespace sluice::engine {

// Leaves everything that the run file does not set to the planner.
inline config::Config planned_config(const std::vector<std::string>& overrides, int world = 1) {
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
  sources.world_size = world;
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

}  // namespace sluice::engine
