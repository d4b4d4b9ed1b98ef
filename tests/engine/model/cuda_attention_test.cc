// Compares attention and rotations on the GPU with ATen's operators in float64 on the CPU, on the
// same 16-bit inputs; and their bits between two calls. Skipped without a GPU.
#include <gtest/gtest.h>

#ifdef SLUICE_HAS_CUDA
#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/cuda/CUDAFunctions.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "engine/model/ops/attention.h"
#include "engine/model/ops/rotary.h"
#include "tests/engine/model/rounding_error.h"

namespace sluice::engine {
namespace {

class CudaAttention : public testing::TestWithParam<at::ScalarType> {
 protected:
  void SetUp() override {
    if (c10::cuda::device_count() == 0) GTEST_SKIP() << "no CUDA device in this machine";
    at::manual_seed(12);
  }
};
INSTANTIATE_TEST_SUITE_P(Dtypes, CudaAttention, testing::Values(at::kBFloat16, at::kHalf),
                         [](const auto& it) { return std::string(c10::toString(it.param)); });

// Rows of two sequences, cut into documents at these tokens.
Documents documents_of(std::int64_t tokens, const std::vector<std::int64_t>& cuts) {
  std::vector<std::int64_t> positions;
  std::vector<std::int32_t> starts;
  Documents documents;
  for (std::int64_t row = 0; row < 2; ++row) {
    std::int64_t begin = 0;
    for (std::int64_t at = 0; at < tokens; ++at) {
      const bool cut = at == 0 || std::find(cuts.begin(), cuts.end(), at + row) != cuts.end();
      if (cut) starts.push_back(static_cast<std::int32_t>(row * tokens + at));
      if (cut) begin = at;
      positions.push_back(at - begin);
      documents.longest = std::max(documents.longest, at - begin + 1);
    }
  }
  starts.push_back(static_cast<std::int32_t>(2 * tokens));
  documents.positions = at::tensor(positions, at::kLong).view({2, tokens});
  documents.starts = at::tensor(starts, at::kInt);
  return documents;
}

Documents on_cuda(const Documents& documents) {
  return {.positions = documents.positions.cuda(),
          .starts = documents.starts.cuda(),
          .longest = documents.longest};
}

// Long enough for every kernel in use; with and without a fixed order of sums.
void expect_matches_plain(at::ScalarType dtype, const HeadShape& heads, std::int64_t window,
                          bool packed, std::optional<double> scale = {}) {
  for (const std::int64_t tokens : {96, 640}) {
    const at::Tensor qkv = at::randn({2, tokens, heads.width()}).to(dtype);
    const at::Tensor gradient = at::randn({2, tokens, heads.query_width()}).to(dtype);
    const Documents documents = documents_of(tokens, {1, 30, 31, 77, 300});
    const Documents there = on_cuda(documents);
    const at::Tensor wide = qkv.to(at::kDouble);
    const AttentionReach reach = {.window = window, .documents = packed ? &documents : nullptr};
    const PlainAttentionOptions plain = {.reach = reach, .scale = scale};
    const at::Tensor expected = plain_attention(HeadViews(wide, heads), plain);
    at::Tensor grad_wide = at::empty_like(wide);
    plain_attention_backward(split_heads(gradient.to(at::kDouble), heads.heads),
                             HeadViews(wide, heads), plain, HeadViews(grad_wide, heads));
    const HeadViews given(qkv.cuda(), heads);
    for (const bool deterministic : {false, true}) {
      const AttentionOptions options = {
          .heads = heads,
          .reach = {.window = window, .documents = packed ? &there : nullptr},
          .deterministic = deterministic,
          .scale = scale};
      const Attended ours = attention(given, options);
      const at::Tensor of_bias = at::zeros({qkv.size(-1)}, ours.output.options().dtype(at::kFloat));
      const at::Tensor grad = attention_backward(gradient.cuda(), given, ours, options, of_bias);
      const std::string which = std::to_string(tokens) + (deterministic ? " deterministic" : "");
      EXPECT_LT(error(ours.output, expected), 1e-2) << which;
      EXPECT_LT(error(grad, grad_wide), 2e-2) << which;
      EXPECT_LT(error(of_bias, grad.cpu().to(at::kDouble).flatten(0, 1).sum(0)), 1e-4) << which;
      if (!deterministic) continue;
      const at::Tensor again =
          attention_backward(gradient.cuda(), given, attention(given, options), options, of_bias);
      EXPECT_TRUE(again.equal(grad)) << which;
    }
  }
}

TEST_P(CudaAttention, MatchesPlainAttentionInFloat64) {
  expect_matches_plain(GetParam(), equal_heads(3, 3 * 64), 0, false);
}

// Half and twice the scale that the heads' width gives.
TEST_P(CudaAttention, OtherScalesOfScoresMatchPlainAttention) {
  for (const double scale : {0.0625, 0.25}) {
    expect_matches_plain(GetParam(), equal_heads(3, 3 * 64), 0, false, scale);
    expect_matches_plain(GetParam(), equal_heads(3, 3 * 64), 17, false, scale);
    expect_matches_plain(GetParam(), equal_heads(3, 3 * 64), 0, true, scale);
  }
}

TEST_P(CudaAttention, SharedKeysMatchPlainAttention) {
  for (const std::int64_t head_dim : {64, 128})
    expect_matches_plain(GetParam(), {.heads = 6, .kv_heads = 2, .head_dim = head_dim}, 0, false);
}

TEST_P(CudaAttention, WindowsMatchPlainAttention) {
  for (const std::int64_t window : {1, 17, 64, 1000})
    expect_matches_plain(GetParam(), {.heads = 4, .kv_heads = 2, .head_dim = 64}, window, false);
}

TEST_P(CudaAttention, WideHeadsMatchPlainAttention) {
  for (const std::int64_t head_dim : {136, 192, 208, 256}) {
    const HeadShape heads = {.heads = 4, .kv_heads = 2, .head_dim = head_dim};
    expect_matches_plain(GetParam(), heads, 0, false);
    expect_matches_plain(GetParam(), heads, 17, false);
    expect_matches_plain(GetParam(), heads, 17, true);
  }
}

TEST_P(CudaAttention, DocumentsMatchPlainAttention) {
  for (const std::int64_t window : {0, 17})
    expect_matches_plain(GetParam(), {.heads = 4, .kv_heads = 2, .head_dim = 64}, window, true);
}

// `pairs`: rotated, of each head.
void expect_turned(at::ScalarType dtype, const HeadShape& heads, std::int64_t pairs) {
  constexpr std::int64_t kTokens = 77;
  constexpr double kEpsilon = 1e-5;
  SCOPED_TRACE(heads.head_dim * 1000 + pairs);
  const std::int64_t head_dim = heads.head_dim;
  RotaryFrequencies frequencies = {.scale = 1.25F};
  for (std::int64_t pair = 0; pair < pairs; ++pair)
    frequencies.of_pair.push_back(1.0F / static_cast<float>(1 + pair * pair));
  const at::Tensor qkv = at::randn({2, kTokens, heads.width()}).to(dtype);
  const at::Tensor gradient = at::randn({2, kTokens, heads.width()}).to(dtype);
  const at::Tensor of_query = at::randn({head_dim}).to(dtype);
  const at::Tensor of_key = at::randn({head_dim}).to(dtype);
  const Documents documents = documents_of(kTokens, {20, 21, 60});
  const Documents there = on_cuda(documents);
  const at::Tensor own = at::rand({2 * kTokens, pairs});
  // Documents, and documents with their own frequencies.
  for (const int packed : {0, 1, 2}) {
    const auto pass = [&](const at::Tensor& from, const at::Tensor& grad, const Documents* cut) {
      const Rotary rotary = {heads,
                             frequencies,
                             {.first = packed != 0 ? 0 : 5, .documents = cut},
                             packed == 2 ? own.to(from.device()) : at::Tensor()};
      const auto like = [&](const at::Tensor& weight) { return weight.to(from.options()); };
      const at::Tensor query_weight = like(of_query);
      const at::Tensor key_weight = like(of_key);
      const HeadNorms norms = {{query_weight, key_weight}, kEpsilon};
      const auto sums =
          from.options().dtype(from.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
      const at::Tensor query_sum = at::ones({head_dim}, sums);
      const at::Tensor key_sum = at::ones({head_dim}, sums);
      at::Tensor turned = from.clone();
      rotate(turned, rotary);
      at::Tensor back = grad.clone();
      rotate_backward(back, rotary);
      at::Tensor normed_back = grad.clone();
      const at::Tensor normed = norm_and_rotate(from, norms, rotary);
      norm_and_rotate_backward(normed_back, from, norms, {query_sum, key_sum}, rotary);
      return std::vector<at::Tensor>{turned, back, normed, normed_back, query_sum, key_sum};
    };
    const auto ours = pass(qkv.cuda(), gradient.cuda(), packed != 0 ? &there : nullptr);
    const auto again = pass(qkv.cuda(), gradient.cuda(), packed != 0 ? &there : nullptr);
    const auto expected =
        pass(qkv.to(at::kDouble), gradient.to(at::kDouble), packed != 0 ? &documents : nullptr);
    for (std::size_t i = 0; i < ours.size(); ++i) {
      EXPECT_LT(error(ours[i], expected[i]), 5e-3) << packed << " " << i;
      EXPECT_TRUE(ours[i].equal(again[i])) << packed << " " << i;
    }
  }
}

// Rotations of heads with and without norms, compared with ATen's operators in float64.
TEST_P(CudaAttention, TurnsOfHeadsMatchFloat64) {
  for (const std::int64_t head_dim : {16, 64, 80, 128, 256}) {
    for (const HeadShape& heads : {HeadShape{.heads = 5, .kv_heads = 1, .head_dim = head_dim},
                                   HeadShape{.heads = 32, .kv_heads = 8, .head_dim = head_dim}}) {
      // Whole heads, and their first quarter.
      expect_turned(GetParam(), heads, head_dim / 2);
      expect_turned(GetParam(), heads, head_dim / 8);
    }
  }
}

// The loss is 0.5 |output|^2, whose gradient is the output. With respect to the values it is exact,
// since the output is linear in them; another mask in backward would give about half. With respect
// to queries and keys it is compared with central differences along it.
TEST_P(CudaAttention, BackwardHasForwardsMasksOfDropout) {
  const std::int64_t heads = 3;
  const HeadShape shape = equal_heads(heads, heads * 64);
  for (const std::int64_t tokens : {96, 640}) {
    for (const bool deterministic : {false, true}) {
      const AttentionOptions options = {.heads = shape,
                                        .dropout = {.probability = 0.5, .seed = 7},
                                        .deterministic = deterministic};
      const at::Tensor qkv = at::randn({2, tokens, 3 * heads * 64}).to(GetParam()).cuda();
      const HeadViews given(qkv, shape);
      const Attended ours = attention(given, options);
      EXPECT_TRUE(attention(given, options).output.equal(ours.output)) << tokens;
      AttentionOptions other = options;
      other.dropout.seed = 8;
      EXPECT_FALSE(attention(given, other).output.equal(ours.output)) << tokens;

      const at::Tensor of_bias = at::zeros({qkv.size(-1)}, ours.output.options().dtype(at::kFloat));
      const at::Tensor grad = attention_backward(ours.output, given, ours, options, of_bias);
      const auto part = [&](const at::Tensor& all, int index) {
        return all.narrow(-1, index * heads * 64, heads * 64).to(at::kDouble);
      };
      const auto value = [&](const at::Tensor& at) {
        return attention(HeadViews(at, shape), options)
                   .output.to(at::kDouble)
                   .square()
                   .sum()
                   .item<double>() /
               2;
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

}  // namespace
}  // namespace sluice::engine

#endif
