// Each fused kernel beside ATen's operators in float64 on the CPU, on the same 16-bit inputs; and
// its bits from one call to the next. Skips without a GPU.
#include <gtest/gtest.h>

#ifdef SLUICE_HAS_CUDA
#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/native_layer_norm.h>
#include <ATen/ops/native_layer_norm_backward.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/cuda/CUDAFunctions.h>

#include <functional>
#include <string>
#include <vector>

#include "engine/model/ops/attention.h"
#include "engine/model/ops/cross_entropy.h"
#include "engine/model/ops/fused_kernels.h"
#include "engine/model/ops/plain_attention.h"

namespace sluice::engine {
namespace {

constexpr double kEpsilon = 1e-5;

struct Case {
  at::ScalarType dtype;
  std::int64_t rows;
  std::int64_t columns;
};

std::string name_of(const testing::TestParamInfo<Case>& info) {
  return std::string(c10::toString(info.param.dtype)) + "Rows" + std::to_string(info.param.rows) +
         "Columns" + std::to_string(info.param.columns);
}

// ||ours - expected|| / ||expected||; the dtype's rounding, or fp32's.
double error(const at::Tensor& ours, const at::Tensor& expected) {
  const at::Tensor host = ours.cpu().to(at::kDouble);
  return ((host - expected).norm() / expected.norm()).item<double>();
}

class FusedKernelsCuda : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (c10::cuda::device_count() == 0) GTEST_SKIP() << "no CUDA device in this machine";
    at::manual_seed(11);
  }

  // Random numbers that the dtype can hold.
  at::Tensor rows() const { return numbers({GetParam().rows, GetParam().columns}); }
  at::Tensor vector() const { return numbers({GetParam().columns}); }
  static at::Tensor numbers(at::IntArrayRef sizes) { return at::randn(sizes).to(GetParam().dtype); }
  static at::Tensor sums(std::int64_t columns) {
    return at::randn({columns}, at::TensorOptions().dtype(at::kFloat));
  }
  double rounding() const { return GetParam().dtype == at::kHalf ? 1e-3 : 5e-3; }
  static constexpr double kSumRounding = 2e-6;

  // Calls twice and compares the bits of everything that it returns; gives the first.
  static std::vector<at::Tensor> twice(const std::function<std::vector<at::Tensor>()>& call) {
    std::vector<at::Tensor> first = call();
    const std::vector<at::Tensor> second = call();
    for (std::size_t i = 0; i < first.size(); ++i) EXPECT_TRUE(first[i].equal(second[i])) << i;
    return first;
  }
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    // A row in one warp and in several, with and without idle threads, up to the widest; rows that
    // do and do not fill a block's share.
    for (const std::int64_t columns : {24, 768, 1600, 2568, 4608}) {
      for (const std::int64_t rows : {1, 67, 530}) all.push_back({dtype, rows, columns});
    }
    all.push_back({dtype, 3100, 1600});
    all.push_back({dtype, 19, 16384});
  }
  return all;
}
INSTANTIATE_TEST_SUITE_P(Shapes, FusedKernelsCuda, testing::ValuesIn(cases()), name_of);

TEST_P(FusedKernelsCuda, NormBehindAResidualMatchesFloat64) {
  const at::Tensor branch = rows();
  const at::Tensor residual = rows();
  const at::Tensor weight = vector();
  const at::Tensor bias = vector();
  const Dropout dropout = {.probability = 0.1, .seed = 5};
  const std::vector<at::Tensor> ours = twice([&] {
    at::Tensor sum = branch.cuda();
    const FusedNorm norm =
        fused_add_and_norm(sum, residual.cuda(), dropout, {weight.cuda(), bias.cuda(), kEpsilon});
    return std::vector<at::Tensor>{sum, norm.output, norm.mean, norm.rstd};
  });
  const at::Tensor expected_sum =
      with_dropout(branch.to(at::kDouble), dropout) + residual.to(at::kDouble);
  EXPECT_LT(error(ours[0], expected_sum), rounding());
  // The norm is of the sum as it was stored.
  const at::Tensor stored = ours[0].cpu().to(at::kDouble);
  const auto [output, mean, rstd] = at::native_layer_norm(
      stored, {stored.size(1)}, weight.to(at::kDouble), bias.to(at::kDouble), kEpsilon);
  EXPECT_LT(error(ours[1], output), rounding());
  EXPECT_LT((ours[2].cpu().to(at::kDouble) - mean).abs().max().item<double>(), 1e-6);
  EXPECT_LT(error(ours[3], rstd), 1e-5);
}

TEST_P(FusedKernelsCuda, NormAloneIsTheNormBehindAResidualOfZero) {
  const at::Tensor input = rows().cuda();
  const at::Tensor weight = vector().cuda();
  const at::Tensor bias = vector().cuda();
  at::Tensor sum = input.clone();
  const FusedNorm alone = fused_norm(input, {weight, bias, kEpsilon});
  const FusedNorm behind =
      fused_add_and_norm(sum, at::zeros_like(input), {}, {weight, bias, kEpsilon});
  EXPECT_TRUE(sum.equal(input));
  EXPECT_TRUE(alone.output.equal(behind.output));
  EXPECT_TRUE(alone.mean.equal(behind.mean));
  EXPECT_TRUE(alone.rstd.equal(behind.rstd));
}

TEST_P(FusedKernelsCuda, NormBackwardMatchesFloat64) {
  const at::Tensor gradient = rows();
  const at::Tensor input = rows();
  const at::Tensor residual = rows();
  const at::Tensor weight = vector();
  const at::Tensor before = sums(GetParam().columns);
  const FusedNorm norm = fused_norm(input.cuda(), {weight.cuda(), weight.cuda(), kEpsilon});
  const std::vector<at::Tensor> ours = twice([&] {
    at::Tensor grad = gradient.cuda();
    const at::Tensor of_weight = before.cuda();
    const at::Tensor of_bias = before.cuda();
    fused_norm_backward(grad, {input.cuda(), norm.mean, norm.rstd, weight.cuda(), residual.cuda()},
                        {of_weight, of_bias});
    return std::vector<at::Tensor>{grad, of_weight, of_bias};
  });
  const at::Tensor x = input.to(at::kDouble);
  const at::Tensor w = weight.to(at::kDouble);
  const auto [output, mean, rstd] = at::native_layer_norm(x, {x.size(1)}, w, w, kEpsilon);
  const auto [grad_input, grad_weight, grad_bias] = at::native_layer_norm_backward(
      gradient.to(at::kDouble), x, {x.size(1)}, mean, rstd, w, w, {true, true, true});
  EXPECT_LT(error(ours[0], grad_input + residual.to(at::kDouble)), rounding());
  EXPECT_LT(error(ours[1], grad_weight + before), kSumRounding);
  EXPECT_LT(error(ours[2], grad_bias + before), kSumRounding);
}

TEST_P(FusedKernelsCuda, GeluAndItsGradientMatchFloat64) {
  // Far into both tails.
  const at::Tensor input = (rows().to(at::kFloat) * 4).to(GetParam().dtype);
  const at::Tensor gradient = rows();
  const at::Tensor before = sums(GetParam().columns);
  const std::vector<at::Tensor> ours = twice([&] {
    at::Tensor activation = input.cuda();
    at::Tensor grad = gradient.cuda();
    const at::Tensor of_bias = before.cuda();
    fused_gelu_backward(activation, grad, of_bias);
    return std::vector<at::Tensor>{activation, grad, of_bias, fused_gelu(input.cuda())};
  });
  const at::Tensor x = input.to(at::kDouble);
  const at::Tensor expected = at::gelu_backward(gradient.to(at::kDouble), x, "tanh");
  EXPECT_LT(error(ours[0], at::gelu(x, "tanh")), rounding());
  EXPECT_LT(error(ours[1], expected), rounding());
  EXPECT_LT(error(ours[2], expected.sum(0) + before), 10 * kSumRounding);
  EXPECT_TRUE(ours[3].equal(ours[0]));
}

TEST_P(FusedKernelsCuda, GeluKeepsItsTails) {
  const std::vector<float> far = {-60000, -100, -20, 0, 20, 100, 60000, -5};
  at::Tensor x = at::tensor(at::ArrayRef<float>(far)).to(GetParam().dtype).unsqueeze(0).cuda();
  at::Tensor slope = at::ones_like(x);
  fused_gelu_backward(x, slope, at::zeros({8}, x.options().dtype(at::kFloat)));
  const at::Tensor expected = at::gelu_backward(
      at::ones({1, 8}, at::kDouble),
      at::tensor(at::ArrayRef<float>(far)).to(GetParam().dtype).to(at::kDouble).unsqueeze(0),
      "tanh");
  EXPECT_TRUE(slope.cpu().to(at::kDouble).allclose(expected, rounding(), 1e-4)) << slope;
  EXPECT_TRUE(x.isfinite().all().item<bool>());
}

TEST_P(FusedKernelsCuda, ResidualIsAddedBehindTheMaskOfDropout) {
  const at::Tensor branch = rows();
  const at::Tensor residual = rows();
  for (const double probability : {0.0, 0.1}) {
    const Dropout dropout = {.probability = probability, .seed = 9};
    at::Tensor sum = branch.cuda();
    fused_add_residual(sum, residual.cuda(), dropout);
    const at::Tensor expected =
        with_dropout(branch.to(at::kDouble), dropout) + residual.to(at::kDouble);
    EXPECT_LT(error(sum, expected), rounding()) << probability;
  }
}

TEST_P(FusedKernelsCuda, DropoutHasTheBitsOfTheCpuAndItsColumnsAreSummed) {
  const at::Tensor gradient = rows();
  const at::Tensor before = sums(GetParam().columns);
  for (const double probability : {0.0, 0.25}) {
    const Dropout dropout = {.probability = probability, .seed = 21};
    const std::vector<at::Tensor> ours = twice([&] {
      const at::Tensor of_bias = before.cuda();
      return std::vector<at::Tensor>{fused_dropout_and_sum(gradient.cuda(), dropout, of_bias),
                                     of_bias};
    });
    EXPECT_TRUE(ours[0].cpu().equal(with_dropout(gradient, dropout))) << probability;
    const at::Tensor expected = with_dropout(gradient.to(at::kDouble), dropout).sum(0) + before;
    EXPECT_LT(error(ours[1], expected), kSumRounding) << probability;
  }
}

TEST_P(FusedKernelsCuda, GatherPutsThreePartsSideBySideAndSumsThem) {
  const at::Tensor parts[] = {rows(), rows(), rows()};
  const at::Tensor before = sums(3 * GetParam().columns);
  const std::vector<at::Tensor> ours = twice([&] {
    at::Tensor gathered = at::cat({parts[0], parts[0], parts[0]}, 1).cuda();
    const at::Tensor of_bias = before.cuda();
    fused_gather({parts[0].cuda(), parts[1].cuda(), parts[2].cuda()}, gathered, of_bias);
    return std::vector<at::Tensor>{gathered, of_bias};
  });
  const at::Tensor expected = at::cat({parts[0], parts[1], parts[2]}, 1);
  EXPECT_TRUE(ours[0].cpu().equal(expected));
  EXPECT_LT(error(ours[1], expected.to(at::kDouble).sum(0) + before), kSumRounding);
}

// Logits whose rows are whole packs, unlike ModelCuda's; the vocabulary ends inside one.
TEST_P(FusedKernelsCuda, PackedCrossEntropyMatchesTheCpu) {
  const std::int64_t vocab = GetParam().columns - 3;
  const at::Tensor logits = (rows().to(at::kFloat) * 4).to(GetParam().dtype);
  const at::Tensor targets = at::randint(vocab, {GetParam().rows}, at::kLong);
  const CrossEntropyOptions options = {.vocab = vocab, .grad_scale = 3};
  const std::vector<at::Tensor> ours = twice([&] {
    at::Tensor device = logits.cuda();
    const at::Tensor losses = cross_entropy_in_place(device, targets.cuda(), options);
    return std::vector<at::Tensor>{losses, device};
  });
  at::Tensor gradient = logits.to(at::kDouble);
  const at::Tensor losses = cross_entropy_in_place(gradient, targets, options);
  EXPECT_LT(error(ours[0], losses), 1e-5);
  EXPECT_LT(error(ours[1], gradient), rounding());
}

class CudaAttention : public testing::TestWithParam<at::ScalarType> {
 protected:
  void SetUp() override {
    if (c10::cuda::device_count() == 0) GTEST_SKIP() << "no CUDA device in this machine";
    at::manual_seed(12);
  }
};
INSTANTIATE_TEST_SUITE_P(Dtypes, CudaAttention, testing::Values(at::kBFloat16, at::kHalf),
                         [](const auto& it) { return std::string(c10::toString(it.param)); });

// Long enough for every kernel that serves; with and without a fixed order of sums.
TEST_P(CudaAttention, MatchesPlainAttentionInFloat64) {
  const std::int64_t heads = 3;
  for (const std::int64_t tokens : {96, 640}) {
    const at::Tensor qkv = at::randn({2, tokens, 3 * heads * 64}).to(GetParam());
    const at::Tensor gradient = at::randn({2, tokens, heads * 64}).to(GetParam());
    const at::Tensor wide = qkv.to(at::kDouble);
    const Attended expected = {.output = plain_attention(HeadViews(wide, heads), {})};
    at::Tensor grad_wide = at::empty_like(wide);
    plain_attention_backward(split_heads(gradient.to(at::kDouble), heads), HeadViews(wide, heads),
                             {}, HeadViews(grad_wide, heads));
    for (const bool deterministic : {false, true}) {
      const AttentionOptions options = {.heads = heads, .deterministic = deterministic};
      const Attended ours = attention(qkv.cuda(), options);
      const at::Tensor of_bias = at::zeros({qkv.size(-1)}, ours.output.options().dtype(at::kFloat));
      const at::Tensor grad =
          attention_backward(gradient.cuda(), qkv.cuda(), ours, options, of_bias);
      EXPECT_LT(error(ours.output, expected.output), 1e-2) << tokens;
      EXPECT_LT(error(grad, grad_wide), 2e-2) << tokens << " " << deterministic;
      EXPECT_LT(error(of_bias, grad.cpu().to(at::kDouble).flatten(0, 1).sum(0)), 1e-4) << tokens;
      if (!deterministic) continue;
      const at::Tensor again = attention_backward(gradient.cuda(), qkv.cuda(),
                                                  attention(qkv.cuda(), options), options, of_bias);
      EXPECT_TRUE(again.equal(grad)) << tokens;
    }
  }
}

// Of 0.5 |output|^2, whose gradient is the output: by the values it is exact, as the output is
// linear in them (another mask in backward would give about half), by queries and keys it is that
// of central differences along it.
TEST_P(CudaAttention, BackwardHasForwardsMasksOfDropout) {
  const std::int64_t heads = 3;
  for (const std::int64_t tokens : {96, 640}) {
    for (const bool deterministic : {false, true}) {
      const AttentionOptions options = {.heads = heads,
                                        .dropout = {.probability = 0.5, .seed = 7},
                                        .deterministic = deterministic};
      const at::Tensor qkv = at::randn({2, tokens, 3 * heads * 64}).to(GetParam()).cuda();
      const Attended ours = attention(qkv, options);
      EXPECT_TRUE(attention(qkv, options).output.equal(ours.output)) << tokens;
      AttentionOptions other = options;
      other.dropout.seed = 8;
      EXPECT_FALSE(attention(qkv, other).output.equal(ours.output)) << tokens;

      const at::Tensor of_bias = at::zeros({qkv.size(-1)}, ours.output.options().dtype(at::kFloat));
      const at::Tensor grad = attention_backward(ours.output, qkv, ours, options, of_bias);
      const auto part = [&](const at::Tensor& all, int index) {
        return all.narrow(-1, index * heads * 64, heads * 64).to(at::kDouble);
      };
      const auto value = [&](const at::Tensor& at) {
        return attention(at, options).output.to(at::kDouble).square().sum().item<double>() / 2;
      };
      EXPECT_NEAR(part(grad, 2).mul(part(qkv, 2)).sum().item<double>() / (2 * value(qkv)), 1, 2e-2)
          << tokens << " " << deterministic;
      for (const int which : {0, 1}) {
        const double slope = part(grad, which).norm().item<double>();
        const double step = 0.01 * part(qkv, which).norm().item<double>();
        at::Tensor direction = at::zeros_like(qkv, qkv.options().dtype(at::kDouble));
        direction.narrow(-1, which * heads * 64, heads * 64)
            .copy_(part(grad, which) * (step / slope));
        const at::Tensor wide = qkv.to(at::kDouble);
        const double rise =
            value((wide + direction).to(GetParam())) - value((wide - direction).to(GetParam()));
        EXPECT_NEAR(rise / (2 * step * slope), 1, 0.1) << tokens << " " << deterministic << which;
      }
    }
  }
}

TEST(FusedKernelsCudaFits, ServeSixteenBitRowsOfWholePacksOnly) {
  if (c10::cuda::device_count() == 0) GTEST_SKIP() << "no CUDA device in this machine";
  const at::Tensor rows = at::zeros({4, 64}, at::TensorOptions().dtype(at::kHalf)).cuda();
  EXPECT_TRUE(cuda_fuses(rows));
  EXPECT_FALSE(cuda_fuses(rows.cpu()));
  EXPECT_FALSE(cuda_fuses(rows.to(at::kFloat)));
  EXPECT_FALSE(cuda_fuses(rows.narrow(1, 0, 32)));               // not contiguous
  EXPECT_FALSE(cuda_fuses(rows.narrow(1, 0, 36).contiguous()));  // half a pack
  EXPECT_FALSE(cuda_fuses(rows.flatten().narrow(0, 4, 64)));     // not aligned
}

}  // namespace
}  // namespace sluice::engine

#else

namespace {
TEST(FusedKernelsCuda, MatchFloat64) { GTEST_SKIP() << "this build has no CUDA code"; }
}  // namespace

#endif
