// Predictions for GPUs that are only described, compared with measured and published values
// (bench/README.md; the READMEs of LLMQ and torchtune).
#include "engine/plan/gpu_sheets.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <iostream>
#include <string>
#include <vector>

#include "tests/engine/plan/plan_under_test.h"

namespace sluice::engine {
namespace {

using ::testing::HasSubstr;

struct Work {
  const char* name;
  std::vector<std::string> overrides;
  double gpu_gib;
  double cpu_gib;
  double tokens_per_s;  // measured
};

// A step predicted by the plan's own model, on a machine with ample RAM bandwidth.
double predicted(const Work& work, const char* gpu, double ram_gb_per_s) {
  const GpuSheet* const sheet = *find_gpu_sheet(gpu);
  std::vector<std::string> overrides = {"budget.nvme_paths=[]", "train_micro_batch_size_per_gpu=8",
                                        "data.sequence_length=1024"};
  overrides.insert(overrides.end(), work.overrides.begin(), work.overrides.end());
  const RunPlan plan =
      planned(planned_config(overrides), {.machine = {.gpu = sheet,
                                                      .gpu_gib = work.gpu_gib,
                                                      .cpu_gib = work.cpu_gib,
                                                      .ram_gb_per_s = ram_gb_per_s}});
  if (!plan.placement.fits) return 0;
  return static_cast<double>(plan.tokens_per_step) / plan.placement.prediction.step_s;
}

void expect_within(double share, const std::vector<Work>& all, const char* gpu,
                   double ram_gb_per_s) {
  for (const Work& work : all) {
    const double tokens_per_s = predicted(work, gpu, ram_gb_per_s);
    std::cout << gpu << ", " << work.name << ": " << tokens_per_s << " tokens/s predicted, "
              << work.tokens_per_s << " measured, " << tokens_per_s / work.tokens_per_s << "\n";
    EXPECT_NEAR(tokens_per_s / work.tokens_per_s, 1, share) << gpu << ", " << work.name;
  }
}

std::vector<std::string> preset(const char* name, int accumulation = 1) {
  return {std::string("model.preset=") + name,
          "gradient_accumulation_steps=" + std::to_string(accumulation)};
}

// An H200 limited to 24 GiB, in a machine whose RAM copies 130 GB/s.
TEST(GpuSheets, PredictAnH200WithinASeventhOfWhatWasMeasured) {
  using List = std::vector<std::string>;
  const List dropout = {"model.dropout=0.1"};
  expect_within(0.15,
                {{"GPT-2 XL, 16 x 128",
                  preset("gpt2-xl") + dropout +
                      List{"train_micro_batch_size_per_gpu=16", "data.sequence_length=128"},
                  24, 56, 35100},
                 {"GPT-2 XL, 8 x 1024", preset("gpt2-xl") + dropout, 24, 56, 39400},
                 {"GPT-2 XL, 64 x 8 x 1024", preset("gpt2-xl", 64) + dropout, 24, 56, 43880},
                 {"Qwen2.5-1.5B, 8 x 1024", preset("qwen2.5-1.5b"), 24, 112, 45300},
                 {"Qwen2.5-7B, 8 x 8 x 1024", preset("qwen2.5-7b", 8), 24, 112, 11203},
                 {"Qwen2.5-7B, 64 x 8 x 1024", preset("qwen2.5-7b", 64), 24, 112, 11116},
                 {"Qwen3-8B, 32 x 2048", preset("qwen3-8b", 4) + List{"data.sequence_length=2048"},
                  24, 112, 10010},
                 {"Qwen3-32B, 32 x 2048",
                  preset("qwen3-32b", 8) +
                      List{"data.sequence_length=2048", "train_micro_batch_size_per_gpu=4"},
                  24, 480, 2465},
                 {"Llama-3.1-8B, 1 x 32768",
                  preset("llama3.1-8b") +
                      List{"data.sequence_length=32768", "train_micro_batch_size_per_gpu=1"},
                  24, 112, 5809}},
                "h200", 130);
}

// Published results for the same models and precision, on a GPU on which Sluice was not tried.
// torchtune recomputes every block.
TEST(GpuSheets, PredictAnRtx4090WithinAQuarterOfWhatIsPublished) {
  using List = std::vector<std::string>;
  const List small = {"train_micro_batch_size_per_gpu=4"};
  expect_within(0.25,
                {{"Qwen2.5-0.5B (LLMQ)", preset("qwen2.5-0.5b", 8), 23.5, 112, 40000},
                 {"Qwen2.5-1.5B (LLMQ)", preset("qwen2.5-1.5b", 8) + small, 23.5, 112, 14000},
                 {"Qwen2.5-3B (LLMQ)", preset("qwen2.5-3b", 8) + small, 23.5, 112, 6200},
                 {"Llama 3.1 8B, LoRA, 2 x 2048 (torchtune)",
                  preset("llama3.1-8b") + List{"train_micro_batch_size_per_gpu=2",
                                               "data.sequence_length=2048", "recipe.lora.rank=8",
                                               "placement.recompute=on"},
                  23.5, 112, 3083}},
                "rtx4090", 60);
}

// A machine whose GPU has all the state.
RunPlan plan_on(const char* gpu, const std::vector<std::string>& more) {
  std::vector<std::string> overrides = {"budget.nvme_paths=[]", "train_micro_batch_size_per_gpu=8",
                                        "data.sequence_length=1024", "model.preset=qwen2.5-7b"};
  overrides.insert(overrides.end(), more.begin(), more.end());
  return planned(planned_config(overrides), {.machine = {.gpu = *find_gpu_sheet(gpu),
                                                         .gpu_gib = 139.0,
                                                         .cpu_gib = 112.0,
                                                         .ram_gb_per_s = 130},
                                             .with_what_ifs = true});
}

TEST(GpuSheets, PlanProductsInFp8AndSayWhatTheyWouldBring) {
  const std::string fp8 = "fp8.enabled=true";
  const RunPlan without = plan_on("h200", {});
  const RunPlan with = plan_on("h200", {fp8});
  const double gain = without.placement.prediction.step_s / with.placement.prediction.step_s;
  EXPECT_GT(gain, 1.3);
  EXPECT_LT(gain, 1.9);
  const auto advised = [](const RunPlan& plan) {
    for (const offload::WhatIf& it : plan.what_if)
      if (it.change == offload::WhatIf::Change::kFp8) return it.tokens_per_s_ratio;
    return 0.0;
  };
  EXPECT_NEAR(advised(without), gain, 0.01);
  EXPECT_EQ(advised(with), 0);
  EXPECT_EQ(advised(plan_on("a100-80", {})), 0);
  const double wide =
      plan_on("h200", {fp8, "fp8.weight_gradient=bf16"}).placement.prediction.step_s;
  EXPECT_GT(wide, with.placement.prediction.step_s);
  EXPECT_LT(wide, without.placement.prediction.step_s);
}

TEST(GpuSheets, RefuseFp8WhereNothingIsComputedInIt) {
  const auto refused = [](const char* gpu, const std::vector<std::string>& overrides) {
    const auto plan =
        plan_run(planned_config(overrides),
                 {.machine = {.gpu = *find_gpu_sheet(gpu), .cpu_gib = 112.0, .ram_gb_per_s = 130}});
    return plan.ok() ? std::string() : plan.error().message();
  };
  const std::vector<std::string> usual = {"budget.nvme_paths=[]", "fp8.enabled=true"};
  EXPECT_THAT(refused("rtx3090", usual), HasSubstr("RTX 3090"));
  EXPECT_EQ(refused("rtx4090", usual), "");
  std::vector<std::string> narrow = usual;
  narrow.insert(narrow.end(), {"model.preset=custom", "model.layers=2", "model.heads=2",
                               "model.hidden=40", "model.vocab=64", "model.context=1024"});
  EXPECT_THAT(refused("rtx4090", narrow), HasSubstr("multiples of 16"));
}

TEST(GpuSheets, AreFoundHoweverTheirNamesAreWritten) {
  for (const char* const name :
       {"rtx4090", "RTX 4090", "GeForce RTX 4090", "4090", "NVIDIA RTX-4090"})
    EXPECT_EQ((*find_gpu_sheet(name))->name, "rtx4090") << name;
  EXPECT_EQ((*find_gpu_sheet("H100"))->tflops, 989);
  EXPECT_EQ((*find_gpu_sheet("A100 80GB"))->name, "a100-80");
  EXPECT_EQ((*find_gpu_sheet("NVIDIA H100 80GB HBM3"))->name, "h100");
  EXPECT_EQ((*find_gpu_sheet("NVIDIA H100 PCIe"))->name, "h100-pcie");
  EXPECT_EQ((*find_gpu_sheet("NVIDIA A100-SXM4-80GB"))->name, "a100-80");
  EXPECT_EQ((*find_gpu_sheet("NVIDIA RTX 6000 Ada Generation"))->name, "rtx6000ada");
  const auto absent = find_gpu_sheet("voodoo2");
  ASSERT_FALSE(absent.ok());
  EXPECT_THAT(absent.error().message(), HasSubstr("rtx3090, rtx3090ti"));
  EXPECT_THAT(absent.error().message(), HasSubstr("--tflops"));
}

TEST(GpuSheets, NameEachShareAndWhereItIsFrom) {
  for (const GpuSheet& sheet : gpu_sheets()) {
    EXPECT_GT(sheet.products.share, 0.3) << sheet.name;
    EXPECT_LT(sheet.products.share, 1) << sheet.name;
    EXPECT_EQ(*find_gpu_sheet(sheet.name), &sheet) << sheet.name;
    EXPECT_EQ(*find_gpu_sheet(sheet.title), &sheet) << sheet.title;
  }
  const RunPlan plan = planned(planned_config({}), {.machine = described()});
  ASSERT_GE(plan.machine.shares.size(), 6U);
  for (const RateShare& it : plan.machine.shares) EXPECT_FALSE(it.from.empty()) << it.what;
}

}  // namespace
}  // namespace sluice::engine
