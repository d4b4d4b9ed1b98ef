#include "engine/model/ops/dropout.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <set>

#include "engine/model/counter_random.h"
#include "engine/model/ops/linear.h"

namespace sluice::engine {
namespace {

constexpr std::int64_t kMany = 1 << 20;

at::Tensor mask(const Dropout& dropout, std::int64_t elements) {
  return with_dropout(at::ones({elements}), dropout).ne(0);
}

double mean_of(const at::Tensor& tensor) { return tensor.to(at::kDouble).mean().item<double>(); }

TEST(Dropout, DropsItsShareAndScalesTheRest) {
  for (const double p : {0.1, 0.5, 0.9}) {
    const at::Tensor dropped = with_dropout(at::ones({kMany}), {.probability = p, .seed = 7});
    const double kept = mean_of(dropped.ne(0));
    const double deviation = std::sqrt(p * (1 - p) / kMany);
    EXPECT_NEAR(kept, 1 - p, 4 * deviation);
    EXPECT_EQ(dropped.max().item<float>(), static_cast<float>(1) * static_cast<float>(1 / (1 - p)));
  }
}

TEST(Dropout, NeighboursAndOtherSeedsAreIndependent) {
  const double p = 0.3;
  const at::Tensor a = mask({.probability = p, .seed = 1}, kMany).to(at::kDouble).sub_(1 - p);
  const double bound = 4 * p * (1 - p) / std::sqrt(kMany);
  for (const std::int64_t lag : {1, 2, 3, 64, 768}) {
    const std::int64_t n = kMany - lag;
    EXPECT_LT(std::abs(mean_of(a.narrow(0, 0, n) * a.narrow(0, lag, n))), bound) << lag;
  }
  for (const std::uint64_t seed : {0U, 2U, 3U}) {
    const at::Tensor b = mask({.probability = p, .seed = seed}, kMany).to(at::kDouble).sub_(1 - p);
    EXPECT_LT(std::abs(mean_of(a * b)), bound) << seed;
  }
}

TEST(Dropout, IsTheDocumentedFunctionOfSeedAndPosition) {
  const Dropout dropout = {.probability = 0.25, .seed = 99};
  const at::Tensor kept = mask(dropout, 1001);
  for (std::int64_t i = 0; i < 1001; ++i) {
    const std::uint64_t pair = counter_bits(99, static_cast<std::uint64_t>(i / 2));
    const auto bits = static_cast<std::uint32_t>(i % 2 == 0 ? pair : pair >> 32);
    ASSERT_EQ(kept[i].item<bool>(), bits >= 0x40000000U) << i;
  }
}

TEST(Dropout, APieceHasTheMaskOfTheWhole) {
  const Dropout dropout = {.probability = 0.25, .seed = 99};
  const at::Tensor whole = with_dropout(at::ones({1000}), dropout);
  at::Tensor piece = at::ones({301});
  drop_in_place(piece, dropout, 500);
  EXPECT_TRUE(piece.equal(whole.narrow(0, 500, 301)));
}

TEST(Dropout, IsTheSameInEveryDtypeAndWithAnyNumberOfThreads) {
  const Dropout dropout = {.probability = 0.4, .seed = 5};
  const at::Tensor expected = mask(dropout, 300001);
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf, at::kDouble}) {
    EXPECT_TRUE(with_dropout(at::ones({300001}, dtype), dropout).ne(0).equal(expected)) << dtype;
  }
  const int threads = at::get_num_threads();
  for (const int count : {1, 2, 5}) {
    at::set_num_threads(count);
    EXPECT_TRUE(mask(dropout, 300001).equal(expected)) << count;
  }
  at::set_num_threads(threads);
}

TEST(Dropout, IsItsOwnBackward) {
  // It is linear and diagonal: <dropout(x), y> = <x, dropout(y)>.
  const Dropout dropout = {.probability = 0.4, .seed = 5};
  const at::Tensor x = at::randn({513, 7}, at::kDouble);
  const at::Tensor y = at::randn({513, 7}, at::kDouble);
  const double forward = (with_dropout(x, dropout) * y).sum().item<double>();
  const double backward = (x * with_dropout(y, dropout)).sum().item<double>();
  EXPECT_NEAR(forward, backward, 1e-9);
}

// Compared with autograd on the same mask.
TEST(Dropout, OfAnAdaptersInputIsInItsGradients) {
  const auto wide = at::TensorOptions().dtype(at::kDouble);
  const auto variable = [](at::Tensor tensor) { return tensor.requires_grad_(); };
  const at::Tensor input = variable(at::randn({2, 7, 12}, wide));
  const at::Tensor a = variable(at::randn({3, 12}, wide));
  const at::Tensor b = variable(at::randn({10, 3}, wide));
  const at::Tensor grad_output = at::randn({2, 7, 10}, wide);
  const Dropout dropout = {.probability = 0.4, .seed = 9};
  const at::Tensor left = with_dropout(at::ones({2, 7, 12}, wide), dropout);
  const at::Tensor expected = (input * left).matmul(a.t()).matmul(b.t()) * 0.5;
  expected.backward(grad_output);

  const at::NoGradGuard no_grad;
  const Adapter adapter = {.a = a, .b = b, .scale = 0.5, .dropout = dropout};
  const at::Tensor output = at::zeros({2, 7, 10}, wide);
  add_adapter(output, input, adapter);
  EXPECT_TRUE(output.allclose(expected, 1e-12));
  const at::Tensor inner = adapter_inner_gradient(grad_output, adapter);
  at::Tensor grad_input = at::zeros({2, 7, 12}, wide);
  add_adapter_input_gradient(grad_input, inner, adapter);
  EXPECT_TRUE(grad_input.allclose(input.grad(), 1e-12));
  EXPECT_TRUE(grad_input.ne(0).equal(left.ne(0)));
  const at::Tensor grad_a = at::zeros({3, 12}, wide);
  const at::Tensor grad_b = at::zeros({10, 3}, wide);
  put_adapter_gradients({.a = grad_a, .b = grad_b}, inner, grad_output, input, adapter);
  EXPECT_TRUE(grad_a.allclose(a.grad(), 1e-12));
  EXPECT_TRUE(grad_b.allclose(b.grad(), 1e-12));
}

TEST(Dropout, NumbersAtASiteAreIndependent) {
  const Dropout site = {.probability = 0.3, .seed = 1};
  EXPECT_NE(numbered(site, 0).seed, numbered(site, 1).seed);
  EXPECT_NE(numbered(site, 0).seed, site.seed);
  EXPECT_EQ(numbered(site, 1).seed, numbered(site, 1).seed);
  EXPECT_EQ(numbered(site, 1).probability, 0.3);
}

TEST(Dropout, EverythingThatNamesAPassChangesTheSeed) {
  std::set<std::uint64_t> seeds;
  const auto add = [&seeds](const PassContext& context, DropoutSite site) {
    seeds.insert(dropout_at(context, site, 0.1).seed);
  };
  add({}, DropoutSite::kEmbedding);
  add({.run_seed = 1}, DropoutSite::kEmbedding);
  add({.step = 1}, DropoutSite::kEmbedding);
  add({.micro_batch = 1}, DropoutSite::kEmbedding);
  add({.unit = 1}, DropoutSite::kEmbedding);
  add({.rank = 1}, DropoutSite::kEmbedding);
  add({}, DropoutSite::kFcProjection);
  EXPECT_EQ(seeds.size(), 7U);
}

TEST(Dropout, IsOffOutsideTraining) {
  EXPECT_FALSE(dropout_at({.training = false}, DropoutSite::kEmbedding, 0.5).active());
  const at::Tensor x = at::ones({3});
  EXPECT_TRUE(with_dropout(x, {}).is_same(x));
}

}  // namespace
}  // namespace sluice::engine
