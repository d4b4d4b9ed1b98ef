// A small run as a configuration with overrides, on a corpus with learnable structure.
#pragma once

#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "aio/split_mix.h"
#include "engine/config/resolve.h"
#include "tests/aio/backends_under_test.h"

namespace sluice::engine {

// Words of a small vocabulary with structure: each word is followed by one of two.
inline void write_corpus(const std::string& path, std::size_t tokens) {
  aio::SplitMix random(5);
  std::vector<std::uint16_t> text(tokens);
  std::uint16_t last = 1;
  for (auto& token : text) {
    last = static_cast<std::uint16_t>((last * 5 + 3 + random.below(2)) % 61);
    token = last;
  }
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(text.data()),
             static_cast<std::streamsize>(text.size() * sizeof(std::uint16_t)));
}

// A small model of the Llama family, and adapters for one.
inline std::vector<std::string> of_llama(const std::vector<std::string>& more = {}) {
  std::vector<std::string> all = {"model.preset=custom",      "model.family=llama",
                                  "model.architecture=qwen3", "model.kv_heads=1",
                                  "model.head_dim=16",        "model.ffn_multiplier=3"};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}
// With experts, and their balance loss.
inline std::vector<std::string> of_experts(const std::vector<std::string>& more = {}) {
  std::vector<std::string> all =
      of_llama({"model.architecture=qwen3_moe", "model.experts=6", "model.experts_per_token=2",
                "model.expert_width=24", "model.router_aux_loss_coef=0.5"});
  all.insert(all.end(), more.begin(), more.end());
  return all;
}
inline std::vector<std::string> of_adapters(const std::vector<std::string>& more = {}) {
  std::vector<std::string> all = of_llama(
      {"recipe.lora.rank=4", "recipe.lora.dropout=0.2", "scheduler.params.warmup_max_lr=0.1"});
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

// Adapters of experts and of attention.
inline std::vector<std::string> of_expert_adapters(const std::vector<std::string>& more = {}) {
  std::vector<std::string> all =
      of_experts({"recipe.lora.rank=4", R"(recipe.lora.targets=["k_proj", "experts"])",
                  "scheduler.params.warmup_max_lr=0.1"});
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

// Parameter groups that cut across the small run's sub-groups, a schedule that scales their rates,
// and a limit that most of its gradient elements exceed.
inline const std::vector<std::string> kInGroups = {
    R"(optimizer.groups=[{"match": "*.c_fc.*", "lr": 0.01, "weight_decay": 0},
                         {"match": ["h.1.*.bias", "wpe.*"], "lr": 0.001},
                         {"match": "*ln_?.weight", "weight_decay": 0.5}])",
    "scheduler.type=warmup_stable_decay",
    "scheduler.params.warmup_ratio=0.2",
    "scheduler.params.warmup_num_steps=auto",
    "gradient_clipping=0",
    "gradient_clipping_value=0.002",
    "run.steps=20"};

class SmallConfig {
 public:
  // `drives`: number of folders that stand for drives: "nvme", "nvme1", ...
  explicit SmallConfig(std::vector<std::string> overrides = {}, int drives = 1)
      : overrides_(std::move(overrides)) {
    write_corpus(folder_.file("train.bin"), 20'000);
    for (int i = 0; i < drives; ++i) {
      drives_.push_back(folder_.file(i == 0 ? "nvme" : "nvme" + std::to_string(i)));
      std::filesystem::create_directory(drives_.back());
    }
  }

  // `world`: ranks of the launch.
  config::Config config(int world = 1) const {
    config::Sources sources;
    sources.world_size = world;
    sources.run_file = config::Source{"test", R"({
      "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2,
      "gradient_clipping": 0.5,
      "bf16": {"enabled": true},
      "optimizer": {"type": "AdamW", "params": {"lr": 0.003, "weight_decay": 0.1}},
      "scheduler": {"type": "WarmupLR",
                    "params": {"warmup_max_lr": 0.003, "warmup_num_steps": 5}},
      "zero_optimization": {"stage": 3, "sub_group_size": 20000,
                            "offload_param": {"device": "cpu"},
                            "offload_optimizer": {"device": "cpu"}},
      "model": {"layers": 3, "hidden": 32, "heads": 2, "context": 16, "vocab": 64},
      "data": {"dtype": "uint16", "validation_fraction": 0.1},
      "run": {"seed": 7, "cpu_threads": 1, "deterministic": true},
      "placement": {"record_elements": 65536}
    })"};
    std::string drives;
    for (const std::string& drive : drives_)
      drives += (drives.empty() ? "\"" : ", \"") + drive + "\"";
    sources.overrides = {"data.train=[\"" + folder_.file("train.bin") + "\"]",
                         "run.dir=" + folder_.file("run"), "budget.nvme_paths=[" + drives + "]"};
    sources.overrides.insert(sources.overrides.end(), overrides_.begin(), overrides_.end());
    auto resolved = config::resolve(sources);
    if (!resolved.ok()) throw std::runtime_error(resolved.error().message());
    return resolved->config;
  }

  const aio::TemporaryFolder& folder() const { return folder_; }
  const std::vector<std::string>& drives() const { return drives_; }

 private:
  aio::TemporaryFolder folder_;
  std::vector<std::string> drives_;
  std::vector<std::string> overrides_;
};

}  // namespace sluice::engine
