// Gradients of a GPU that wait on NVMe have the bits of those that wait in memory. Skipped without
// a GPU.
#include <ATen/Context.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/budget/configured_model.h"
#include "tests/engine/run/run_under_test.h"

namespace sluice::engine {
namespace {

constexpr int kSteps = 4;

struct Trained {
  std::vector<float> masters;
  std::vector<double> losses;
  std::vector<UnitHashes> hashes;  // of the last step
  std::uint64_t nvme_write_bytes = 0;
};

Trained train(std::vector<std::string> overrides) {
  for (const char* override : {"run.device=cuda", "run.hash_units=true"})
    overrides.emplace_back(override);
  const SmallRun small(overrides);
  const auto run = small.start();
  Trained trained;
  for (int i = 0; i < kSteps; ++i) trained.losses.push_back(run->step().loss);
  trained.nvme_write_bytes = run->traffic().nvme_write_bytes;
  trained.masters = masters_of(*run);
  trained.hashes = run->trainer().unit_hashes();
  return trained;
}

struct Case {
  const char* name;
  std::vector<std::string> overrides;
};

std::ostream& operator<<(std::ostream& out, const Case& it) { return out << it.name; }

class GradientsOnNvmeCuda : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (!at::hasCUDA()) GTEST_SKIP() << "no GPU that LibTorch can use in this machine";
  }
};

TEST_P(GradientsOnNvmeCuda, HaveTheBitsOfThoseInMemory) {
  const std::vector<std::string>& overrides = GetParam().overrides;
  const Trained expected = train(overrides);
  std::vector<std::string> moved = overrides;
  moved.emplace_back("placement.gradients_to_nvme=on");
  const Trained got = train(moved);
  EXPECT_EQ(got.masters, expected.masters);
  EXPECT_EQ(got.losses, expected.losses);
  ASSERT_EQ(got.hashes.size(), expected.hashes.size());
  for (std::size_t unit = 0; unit < got.hashes.size(); ++unit)
    EXPECT_EQ(got.hashes[unit].gradient, expected.hashes[unit].gradient);
  const config::Config config = SmallRun(moved).config();
  const auto plan =
      plan_memory(config, configured_layout(config, /*on_gpu=*/true), {.on_gpu = true});
  ASSERT_OK(plan);
  if (plan->gradients)
    EXPECT_GT(got.nvme_write_bytes, expected.nvme_write_bytes);
  else
    EXPECT_EQ(got.nvme_write_bytes, expected.nvme_write_bytes);
}

const char* const kNvme = "zero_optimization.offload_optimizer.device=nvme";
const char* const kThirds =
    R"(placement.optimizer_fractions={"gpu": 0.4, "cpu": 0.3, "nvme": 0.3})";
const std::vector<std::string> kWaves = {"gradient_accumulation_steps=5",
                                         "placement.wave_micro_batches=2", "model.layers=4"};

std::vector<std::string> operator+(std::vector<std::string> a, const std::vector<std::string>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

INSTANTIATE_TEST_SUITE_P(
    Runs, GradientsOnNvmeCuda,
    testing::Values(
        Case{"plain", {}}, Case{"state_on_nvme", {kNvme}},
        Case{"all_on_nvme",
             {kNvme, "zero_optimization.offload_param.device=nvme",
              "zero_optimization.stage3_param_persistence_threshold=0"}},
        Case{"thirds",
             {"zero_optimization.offload_optimizer.device=auto",
              "zero_optimization.sub_group_size=1000", kThirds}},
        Case{"all_on_the_gpu",
             {"zero_optimization.offload_optimizer.device=none",
              "zero_optimization.offload_param.device=none"}},
        Case{"waves", kWaves},
        Case{"waves_fp32", kWaves + std::vector<std::string>{"bf16.enabled=false"}},
        Case{"waves_in_lanes",
             {"run.lanes=4", "run.rounds=2", "gradient_accumulation_steps=8",
              "placement.wave_micro_batches=1"}},
        Case{"not_overlapped", kWaves + std::vector<std::string>{"placement.overlap_update=false"}},
        Case{"one_block",
             {"model.layers=1", "gradient_accumulation_steps=3", "placement.wave_micro_batches=1"}},
        Case{"llama", of_llama(kWaves)}, Case{"adapters", of_adapters(kWaves)},
        Case{"adapters_beside_int8", of_adapters({"recipe.lora.base_bits=8"})},
        Case{"adapters_beside_nf4", of_adapters({"recipe.lora.base_bits=4"})},
        Case{"large_head",
             of_llama({"model.vocab=150016", "model.hidden=256", "bf16.enabled=false"})},
        Case{"fp16", {"bf16.enabled=false", "fp16.enabled=true", "fp16.initial_scale_power=24"}}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace sluice::engine
