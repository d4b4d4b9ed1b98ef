// Experts on CUDA: grouped products compared with one product per expert, and both with autograd
// in fp64. Skipped without a GPU.
#include <gtest/gtest.h>

#ifdef SLUICE_HAS_CUDA
#include <ATen/Context.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <c10/cuda/CUDAFunctions.h>

#include <cmath>
#include <vector>

#include "engine/model/ops/cuda_kernels.h"
#include "tests/engine/model/experts_under_test.h"
#include "tests/engine/model/rounding_error.h"

namespace sluice::engine {
namespace {

class ModelCudaExperts : public testing::Test {
 protected:
  void SetUp() override {
    if (c10::cuda::device_count() == 0) GTEST_SKIP() << "no CUDA device in this machine";
  }
  static bool groups() {
    const int major = cuda_major(at::Device(at::kCUDA, 0));
    return major == 9 || major == 10;
  }
};

// Sizes whose rows are multiples of 16 bytes, as grouped products want, and others.
const ExpertsCase kCases[] = {
    {"Aligned", 700, 64, {.count = 8, .per_token = 2, .width = 40, .renormalises = true}},
    {"Fp32Weights", 700, 64, {.count = 8, .per_token = 2, .width = 40, .fp32_weights = true}},
    {"WithGaps", 333, 72, {.count = 6, .per_token = 3, .width = 24, .renormalises = true}},
    {"ManyExperts", 90, 256, {.count = 128, .per_token = 8, .width = 96, .renormalises = true}},
    {"MostWithoutTokens", 3, 64, {.count = 64, .per_token = 2, .width = 32}},
    {"OneToken", 1, 64, {.count = 16, .per_token = 4, .width = 32, .renormalises = true}},
    {"OneExpert", 50, 64, {.count = 1, .per_token = 1, .width = 32}},
    {"AllExperts", 50, 64, {.count = 4, .per_token = 4, .width = 32}},
    {"Unaligned", 77, 30, {.count = 5, .per_token = 2, .width = 18, .renormalises = true}},
    {"WithBiases",
     700,
     64,
     {.count = 8,
      .per_token = 2,
      .width = 40,
      .renormalises = true,
      .bias = true,
      .gate = {.alpha = 1.702, .limit = 7}}}};

at::TensorOptions on_cuda(at::ScalarType dtype) {
  return at::TensorOptions().dtype(dtype).device(at::kCUDA);
}

// Memory that a kernel leaves unwritten would show these.
void poison_free_memory() {
  std::vector<at::Tensor> blocks;
  for (int i = 0; i < 8; ++i)
    blocks.push_back(at::full({1 << 22}, std::nan(""), on_cuda(at::kFloat)));
}

void expect_matches_autograd(const ExpertsUnderTest& experts, std::int64_t per_token,
                             double bound) {
  poison_free_memory();
  experts.flat_gradient().zero_();
  for (const int place : experts.matrices()) experts.gradients()[place].fill_(std::nan(""));
  const auto made = experts.run(/*overwrite=*/true);
  const auto expected = experts.expected(chosen_of(made.logits, per_token));
  EXPECT_LT(error(made.output, expected.output), bound);
  EXPECT_LT(error(made.grad_input, expected.grad_input), bound);
  const std::vector<int> places = experts.trained();
  for (std::size_t i = 0; i < places.size(); ++i) {
    const at::Tensor gradient = experts.gradients()[places[i]].cpu().to(at::kDouble);
    const double scale = expected.gradients[i].norm().item<double>();
    // An expert with one or two tokens averages no rounding.
    if (scale < 1e-12)
      EXPECT_LT(gradient.norm().item<double>(), i == 0 ? 10 * bound : 1e-300) << i;
    else
      EXPECT_LT((gradient - expected.gradients[i]).norm().item<double>() / scale, 4 * bound) << i;
  }
}

// The widths that our own kernel takes, and one that it does not.
TEST_F(ModelCudaExperts, SumTheRowsOfATokenLikeTheCpu) {
  constexpr std::int64_t kTokens = 37;
  for (const std::int64_t columns : {8, 30, 264, 4096}) {
    for (const std::int64_t per_token : {1, 2, 7}) {
      at::manual_seed(static_cast<std::uint64_t>(columns + per_token));
      const at::Tensor chosen = at::randn({kTokens, 9})
                                    .argsort(/*stable=*/true, /*dim=*/-1, /*descending=*/false)
                                    .narrow(1, 0, per_token);
      const ExpertRows host(chosen, 9);
      const ExpertRows device(chosen.cuda(), 9);
      const at::Tensor weights = at::randn({kTokens, per_token});
      for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
        const at::Tensor rows = at::randn({kTokens * per_token, columns}).to(dtype);
        const double bound = dtype == at::kBFloat16 ? 0.004 : 0.0005;
        EXPECT_LT(error(device.summed(rows.cuda()), host.summed(rows).to(at::kDouble)), bound);
        EXPECT_LT(error(device.summed(rows.cuda(), weights.cuda()),
                        host.summed(rows, weights).to(at::kDouble)),
                  bound);
      }
    }
  }
}

TEST_F(ModelCudaExperts, MatchAutogradGroupedAndOneByOne) {
  for (const ExpertsCase& which : kCases) {
    SCOPED_TRACE(which.name);
    for (const bool apart : {false, true}) {
      SCOPED_TRACE(apart ? "apart" : "in sequence");
      for (const auto& [dtype, bound] : {std::pair(at::kFloat, 1e-5), std::pair(at::kHalf, 0.004),
                                         std::pair(at::kBFloat16, 0.02)}) {
        SCOPED_TRACE(c10::toString(dtype));
        ExpertsUnderTest experts(which, on_cuda(dtype));
        if (apart) experts.scatter();
        // A clamped gate multiplies sums that a bias has made larger than their parts.
        const double rounding = which.spec.bias ? 2.5 * bound : bound;
        expect_matches_autograd(experts, which.spec.per_token, rounding);
      }
    }
  }
}

TEST_F(ModelCudaExperts, GiveTheSameBitsTwiceAndAddToGradients) {
  for (const ExpertsCase& which : kCases) {
    SCOPED_TRACE(which.name);
    const ExpertsUnderTest experts(which, on_cuda(at::kBFloat16));
    const auto first = experts.run();
    const at::Tensor once = experts.flat_gradient().clone();
    experts.flat_gradient().zero_();
    for (const int place : experts.matrices()) experts.gradients()[place].fill_(std::nan(""));
    poison_free_memory();
    const auto second = experts.run(/*overwrite=*/true);
    EXPECT_TRUE(second.output.equal(first.output));
    EXPECT_TRUE(second.grad_input.equal(first.grad_input));
    EXPECT_TRUE(experts.flat_gradient().equal(once));
    experts.run();
    EXPECT_TRUE(experts.flat_gradient().allclose(2 * once, 1e-5, 1e-6));
  }
}

TEST_F(ModelCudaExperts, NeverWaitForTheDeviceWhereProductsAreGrouped) {
  if (!groups()) GTEST_SKIP() << "this GPU has no grouped products";
  const ExpertsUnderTest experts(kCases[0], on_cuda(at::kBFloat16));
  experts.run();  // libraries may wait the first time
  auto& state = c10::cuda::warning_state();
  state.set_sync_debug_mode(c10::cuda::SyncDebugMode::L_ERROR);
  EXPECT_NO_THROW(experts.run());
  state.set_sync_debug_mode(c10::cuda::SyncDebugMode::L_DISABLED);
}

TEST_F(ModelCudaExperts, CountAndBalanceLikeTheCpuAndWithoutWaiting) {
  constexpr std::int64_t kExperts = 40;
  const RoutingRule rule = {.per_token = 3, .renormalises = true, .fp32_weights = true};
  at::manual_seed(9);
  const at::Tensor logits = at::randn({300, kExperts}, at::kFloat);
  const at::Tensor balance = at::randn({kExperts}, at::kDouble);
  const auto made_on = [&](at::Device device) {
    const at::Tensor here = logits.to(device);
    const at::Tensor of_all = balance.to(device);
    const auto zeros = at::TensorOptions().device(device);
    const RoutedTokens to = {.rows = at::zeros({kExperts}, zeros.dtype(at::kLong)),
                             .chosen = at::zeros({kExperts}, zeros.dtype(at::kLong)),
                             .probabilities = at::zeros({kExperts}, zeros.dtype(at::kDouble))};
    auto& state = c10::cuda::warning_state();
    state.set_sync_debug_mode(c10::cuda::SyncDebugMode::L_ERROR);
    ExpertsPass::Middle middle;
    middle.routing = route(here, rule);
    middle.rows.emplace(middle.routing->chosen, kExperts);
    ExpertsPass::count(middle, to);
    const at::Tensor gradient = route_backward(
        *middle.routing, rule, at::ones_like(middle.routing->weights), at::kFloat, of_all);
    state.set_sync_debug_mode(c10::cuda::SyncDebugMode::L_DISABLED);
    return std::vector<at::Tensor>{to.rows.cpu(), to.chosen.cpu(), to.probabilities.cpu(),
                                   gradient.cpu()};
  };
  const auto host = made_on(at::kCPU);
  const auto device = made_on(at::kCUDA);
  EXPECT_TRUE(device[0].equal(host[0]) && device[1].equal(host[1]));
  EXPECT_TRUE(device[2].allclose(host[2], 1e-6));
  EXPECT_TRUE(device[3].allclose(host[3], 1e-4, 1e-6));
}

// Many columns at a time would not fit: the gradient is made in several parts.
TEST_F(ModelCudaExperts, GradientsOfWideExpertsAreMadeInParts) {
  constexpr std::int64_t kHidden = 4096;
  constexpr std::int64_t kWidth = 512;
  const ExpertsCase wide = {
      "Wide", 200, kHidden, {.count = 128, .per_token = 2, .width = kWidth, .renormalises = true}};
  ASSERT_GT(wide.spec.count * 2 * kWidth * kHidden, kGroupedGradientNumbers);
  ExpertsUnderTest experts(wide, on_cuda(at::kBFloat16));
  const auto grouped = experts.run();
  const at::Tensor last = experts.gradients()[experts.places().expert_in + 255].clone();
  experts.scatter();
  for (const int place : experts.matrices()) experts.gradients()[place].zero_();
  const auto one_by_one = experts.run();
  EXPECT_LT(error(grouped.output, one_by_one.output.cpu().to(at::kDouble)), 0.02);
  const at::Tensor expected = experts.gradients()[experts.places().expert_in + 255].cpu();
  EXPECT_GT(expected.norm().item<double>(), 0);
  EXPECT_LT(error(last, expected.to(at::kDouble)), 0.02);
}

}  // namespace
}  // namespace sluice::engine

#endif
