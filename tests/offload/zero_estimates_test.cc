// Compared with DeepSpeed's output for well-known models: GiB with two digits.
#include "offload/planner/zero_estimates.h"

#include <gtest/gtest.h>

#include <cmath>

#include "aio/units.h"

namespace sluice::offload {
namespace {

double gib(std::uint64_t bytes) {
  return std::round(100 * static_cast<double>(bytes) / static_cast<double>(kGiB)) / 100;
}

struct Printed {
  bool params, optimizer, zero_init;
  double cpu_gib, gpu_gib;
};

void expect_printed(const std::vector<ZeroEstimate>& estimates,
                    const std::vector<Printed>& printed) {
  ASSERT_EQ(estimates.size(), printed.size());
  for (std::size_t i = 0; i < printed.size(); ++i) {
    EXPECT_EQ(estimates[i].offload_params, printed[i].params) << i;
    EXPECT_EQ(estimates[i].offload_optimizer, printed[i].optimizer) << i;
    EXPECT_EQ(estimates[i].zero_init, printed[i].zero_init) << i;
    EXPECT_DOUBLE_EQ(gib(estimates[i].cpu_bytes), printed[i].cpu_gib) << i;
    EXPECT_DOUBLE_EQ(gib(estimates[i].gpu_bytes), printed[i].gpu_gib) << i;
  }
}

// T5-small: 60,506,624 parameters, 32,128 x 512 of them in the embedding.
TEST(ZeroEstimates, AreDeepSpeedsForT5SmallOnOneGpu) {
  expect_printed(zero3_estimates({60'506'624, 32'128 * 512}, {}),
                 {{true, true, true, 1.52, 0.06},
                  {true, true, false, 1.52, 0.06},
                  {false, true, true, 1.35, 0.17},
                  {false, true, false, 1.35, 0.17},
                  {false, false, true, 0.09, 1.08},
                  {false, false, false, 0.34, 1.08}});
}

constexpr ZeroModel kBillion{.parameters = 1'000'000'000, .largest_layer_parameters = 50'000'000};

TEST(ZeroEstimates, CountBytesPerParameterForZero2) {
  const auto one = zero2_estimates(kBillion, {});
  ASSERT_EQ(one.size(), 2);
  EXPECT_TRUE(one[0].offload_optimizer);
  EXPECT_EQ(one[0].cpu_bytes, 24'000'000'000);
  EXPECT_EQ(one[0].gpu_bytes, 2'000'000'000);
  EXPECT_FALSE(one[1].offload_optimizer);
  EXPECT_EQ(one[1].cpu_bytes, 6'000'000'000);
  EXPECT_EQ(one[1].gpu_bytes, 20'000'000'000);
  // Eight GPUs: each process creates the model in host memory.
  const auto eight = zero2_estimates(kBillion, {.gpus_per_node = 8});
  EXPECT_EQ(eight[0].cpu_bytes, 48'000'000'000);
  EXPECT_EQ(eight[0].gpu_bytes, 2'000'000'000);
  EXPECT_EQ(eight[1].cpu_bytes, 48'000'000'000);
  EXPECT_EQ(eight[1].gpu_bytes, 4'250'000'000);
}

TEST(ZeroEstimates, ShareZero3AmongNodesAndGpus) {
  const auto estimates = zero3_estimates(kBillion, {.gpus_per_node = 8, .nodes = 4});
  ASSERT_EQ(estimates.size(), 6);
  const std::uint64_t layer = 200'000'000;
  EXPECT_EQ(estimates[0].cpu_bytes, 6'750'000'000);
  EXPECT_EQ(estimates[0].gpu_bytes, layer);
  EXPECT_EQ(estimates[1].cpu_bytes, 48'000'000'000);
  EXPECT_EQ(estimates[2].cpu_bytes, 6'000'000'000);
  EXPECT_EQ(estimates[2].gpu_bytes, layer + 62'500'000);
  EXPECT_EQ(estimates[4].cpu_bytes, 12 * layer);
  EXPECT_EQ(estimates[4].gpu_bytes, layer + 562'500'000);
  EXPECT_EQ(estimates[5].cpu_bytes, 48'000'000'000);
}

}  // namespace
}  // namespace sluice::offload
