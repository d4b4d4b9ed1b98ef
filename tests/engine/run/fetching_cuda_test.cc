// The effect of ZeRO-3's limits on the copies to the GPU. Skipped without a GPU.
#include <ATen/Context.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <cmath>

#include "engine/budget/configured_model.h"
#include "engine/device/gpu.h"
#include "engine/step/cuda_step.h"
#include "tests/engine/run/run_under_test.h"

namespace sluice::engine {
namespace {

constexpr int kSteps = 3;
constexpr int kLayers = 8;

struct Fetched {
  std::uint64_t h2d_bytes = 0;
  std::uint64_t all_bytes = 0;  // the whole model
  std::uint64_t block_bytes = 0;
  std::vector<float> masters;
  double loss = 0;
};

Fetched train(std::vector<std::string> overrides) {
  for (const char* override : {"run.device=cuda", "model.layers=8", "model.vocab=61"})
    overrides.emplace_back(override);
  const SmallRun small(overrides);
  const auto run = small.start();
  Fetched fetched;
  for (int i = 0; i < kSteps; ++i) fetched.loss = run->step().loss;
  fetched.h2d_bytes = run->traffic().h2d_bytes;
  for (int unit = 0; unit < run->model().units(); ++unit)
    fetched.all_bytes += 2 * run->model().layout(unit).elements;
  fetched.block_bytes = 2 * run->model().layout(1).elements;
  fetched.masters = masters_of(*run);
  return fetched;
}

class FetchingCuda : public testing::Test {
 protected:
  void SetUp() override {
    if (!at::hasCUDA()) GTEST_SKIP() << "no GPU that LibTorch can use in this machine";
  }
};

struct Case {
  const char* what;
  std::vector<std::string> overrides;
  int found_again;  // blocks, in backward
};

// Forward copies every unit, and backward copies the blocks that are no longer there.
TEST_F(FetchingCuda, CopiesAgainOnlyWhatTheLimitsDoNotKeep) {
  const std::string live = "zero_optimization.stage3_max_live_parameters=";
  const std::string reuse = "zero_optimization.stage3_max_reuse_distance=";
  const std::string bucket = "zero_optimization.stage3_prefetch_bucket_size=";
  const Case cases[] = {
      {"everything is kept", {live + "1e12", reuse + "1e12"}, kLayers},
      {"nothing is kept for reuse", {bucket + "1", reuse + "0"}, 3},
      {"hardly anything is live", {live + "1", reuse + "1e12"}, 2},
      // Head and embedding (2,816 elements) and three blocks of 13,312, twice.
      {"the distance of four blocks", {bucket + "1", reuse + "82688"}, 4},
      {"three units ahead", {"placement.prefetch_units=3", reuse + "0"}, 5},
  };
  const Fetched expected = train({});
  for (const Case& it : cases) {
    const Fetched fetched = train(it.overrides);
    const auto again = static_cast<std::uint64_t>(kLayers - it.found_again);
    EXPECT_EQ(fetched.h2d_bytes, kSteps * (fetched.all_bytes + again * fetched.block_bytes))
        << it.what;
    EXPECT_EQ(fetched.masters, expected.masters) << it.what;
    EXPECT_EQ(fetched.loss, expected.loss) << it.what;
  }
}

// A budget limits the allocator, not only the plan.
TEST_F(FetchingCuda, TakesNoMoreThanItsBudgetWhateverTheGpuHas) {
  struct NoLimit {
    ~NoLimit() { static_cast<void>(limit_cuda_memory(std::uint64_t{1} << 50)); }
  } const no_limit;
  const SmallRun small({"run.device=cuda", "budget.gpu_gib=1"});
  const auto run = small.start();
  run->step();
  const auto take = [](std::int64_t bytes) {
    return at::empty({bytes}, at::TensorOptions().dtype(at::kByte).device(at::kCUDA));
  };
  EXPECT_NO_THROW(take(std::int64_t{256} << 20));
  EXPECT_THROW(take(std::int64_t{512} << 20), c10::OutOfMemoryError);
  run->step();
}

TEST_F(FetchingCuda, GivesUpSlotsThatTheGpuHasNoRoomFor) {
  const config::Config config = SmallRun({"run.device=cuda", "model.layers=8"}).config();
  const ModelLayout model = configured_layout(config, /*on_gpu=*/true);
  const auto whole = plan_memory(config, model, {.on_gpu = true});
  ASSERT_OK(whole);
  EXPECT_EQ(whole->fetching.block_slots, kLayers);
  const std::uint64_t block_bytes = 2 * model.layout(1).elements;
  const auto tight = plan_memory(
      config, model, {.on_gpu = true, .gpu_room_bytes = whole->gpu_bytes() - 3 * block_bytes});
  ASSERT_OK(tight);
  EXPECT_EQ(tight->fetching.block_slots, kLayers - 3);
  EXPECT_EQ(tight->gpu_bytes(), whole->gpu_bytes() - 3 * block_bytes);
  EXPECT_EQ(tight->notes.size(), 1U);
  const auto least = plan_memory(config, model, {.on_gpu = true, .gpu_room_bytes = 1});
  ASSERT_OK(least);
  EXPECT_EQ(least->fetching.block_slots, 2);  // the preflight check refuses it
}

// 150,016 rows of 256 in fp32 are more than a stage holds; on the GPU they use no stage.
TEST_F(FetchingCuda, AHeadLargerThanAStageIsSentInPiecesAndInTheSlotOfTheEmbedding) {
  const auto steps = [](const std::string& device) {
    const SmallRun small(
        of_llama({"run.device=cuda", "model.vocab=150016", "model.hidden=256", "bf16.enabled=false",
                  "zero_optimization.offload_optimizer.device=" + device,
                  "zero_optimization.offload_param.device=" + device}));
    const ModelLayout model = configured_layout(small.config(), /*on_gpu=*/true);
    EXPECT_TRUE(model.borrowed(model.head()).empty());
    if (device == "cpu") {
      const auto plan = plan_memory(small.config(), model, {.on_gpu = true});
      EXPECT_LT(SinkFootprint::of(model, sink_options(*plan)).stage_bytes(),
                4 * model.layout(model.head()).elements);
    }
    const auto run = small.start();
    std::vector<double> losses;
    for (int i = 0; i < kSteps; ++i) losses.push_back(run->step().loss);
    return std::pair(losses, masters_of(*run));
  };
  const auto on_the_gpu = steps("none");
  EXPECT_EQ(steps("cpu"), on_the_gpu);
}

// The rows that pad the vocabulary have no effect: a vocabulary padded from 61 to 64 learns as on
// the CPU, which does not pad.
TEST_F(FetchingCuda, APaddedVocabularyLearnsAsOneThatIsNot) {
  const auto losses = [](const char* device) {
    const SmallRun small({std::string("run.device=") + device, "model.vocab=61"});
    const auto run = small.start();
    std::vector<double> all;
    for (int i = 0; i < 10; ++i) all.push_back(run->step().loss);
    return all;
  };
  const config::Config config = SmallRun({"run.device=cuda", "model.vocab=61"}).config();
  EXPECT_EQ(configured_model(config, /*on_gpu=*/true).padded_vocab, 64);
  const std::vector<double> expected = losses("cpu");
  const std::vector<double> got = losses("cuda");
  EXPECT_NEAR(expected.front(), std::log(61.0), 0.3);
  for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(got[i], expected[i], 0.05) << i;
}

}  // namespace
}  // namespace sluice::engine
