// A block whose feed-forward is computed in pieces, compared with the whole block.
#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>

#include "tests/engine/model/block_under_test.h"
#include "tests/engine/model/specs.h"

#ifdef SLUICE_HAS_CUDA
#include <c10/cuda/CUDAFunctions.h>
#endif

namespace sluice::engine {
namespace {

struct Case {
  std::string name;
  std::map<std::string, double> numbers = {};
  double dropout = 0;
  LoraRecipe lora = {};
  bool packed = false;  // several documents in a row
};

LoraRecipe adapters(double dropout) {
  return {.rank = 2,
          .alpha = 4,
          .dropout = dropout,
          .targets = {"q_proj", "v_proj", "o_proj", "gate_proj", "down_proj"}};
}

const Case kCases[] = {
    {.name = "Gpt2"},
    {.name = "Gpt2Dropped", .dropout = 0.2},
    {.name = "Gpt2Relu", .numbers = {{"activation", 2}}, .dropout = 0.2, .packed = true},
    {.name = "Llama"},
    {.name = "LlamaBiases", .numbers = {{"attention_bias", 1}, {"mlp_bias", 1}}, .packed = true},
    {.name = "LlamaAdapters", .lora = adapters(0)},
    {.name = "LlamaDroppedAdapters", .lora = adapters(0.3), .packed = true},
    {.name = "LlamaAttentionDropped", .dropout = 0.2},
    {.name = "Qwen3", .numbers = {{"architecture", architecture("qwen3")}}},
    {.name = "Mistral", .numbers = {{"architecture", architecture("mistral")}, {"window", 5}}},
    {.name = "SmolLm3Unrotated",
     .numbers = {{"architecture", architecture("smollm3")},
                 {"attention_bias", 1},
                 {"unrotated_interval", 1}},
     .packed = true},
    {.name = "Gemma3", .numbers = {{"attention_bias", 1}, {"window", 5}}, .packed = true},
    {.name = "Gemma3Adapters", .lora = adapters(0.3)},
    {.name = "Gemma2", .numbers = {{"window", 5}, {"score_cap", 0.5}}, .packed = true}};

ModelShape shape_of(const Case& which, std::int64_t head_dim) {
  ModelShape shape = {.layers = 1,
                      .hidden = 4 * head_dim,
                      .heads = 4,
                      .context_tokens = 2048,
                      .vocab = 31,
                      .dropout = which.dropout,
                      .numbers = which.numbers};
  if (which.name.starts_with("Gpt2")) return complete(std::move(shape));
  shape.family = which.name.starts_with("Gemma3")   ? "gemma3"
                 : which.name.starts_with("Gemma2") ? "gemma2"
                                                    : "llama";
  shape.ffn_hidden = 5 * head_dim;
  shape.numbers.insert({{"kv_heads", 2}, {"head_dim", static_cast<double>(head_dim)}});
  return complete(std::move(shape));
}

// Two in each row.
Documents documents_of(std::int64_t rows, std::int64_t tokens, at::Device device) {
  const std::int64_t first = tokens / 3;
  const at::Tensor row = at::arange(tokens, at::kLong);
  row.narrow(0, first, tokens - first).sub_(first);
  std::vector<std::int64_t> starts;
  Documents documents;
  for (std::int64_t i = 0; i < rows; ++i) {
    starts.insert(starts.end(), {i * tokens, i * tokens + first});
    documents.lengths.insert(documents.lengths.end(), {first, tokens - first});
  }
  starts.push_back(rows * tokens);
  documents.positions = row.repeat({rows, 1}).to(device);
  documents.starts = at::tensor(starts, at::kInt).to(device);
  documents.longest = tokens - first;
  return documents;
}

std::string name_of(const testing::TestParamInfo<Case>& info) { return info.param.name; }

class BlockPieces : public testing::TestWithParam<Case> {};
class ModelCudaBlockPieces : public testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Blocks, BlockPieces, testing::ValuesIn(kCases), name_of);
INSTANTIATE_TEST_SUITE_P(Blocks, ModelCudaBlockPieces, testing::ValuesIn(kCases), name_of);

TEST_P(BlockPieces, GiveTheResultsOfTheWholeBlock) {
  constexpr std::int64_t kRows = 3;
  constexpr std::int64_t kTokens = 11;
  const ModelShape shape = shape_of(GetParam(), 6);
  const auto options = at::TensorOptions().dtype(at::kDouble);
  const Documents documents = documents_of(kRows, kTokens, at::kCPU);
  const at::Tensor input = at::randn({kRows, kTokens, shape.hidden}, options);
  const at::Tensor grad = at::randn({kRows, kTokens, shape.hidden}, options);
  PassContext context = {.run_seed = 5, .micro_batch = 2, .unit = 1};
  if (GetParam().packed) context.documents = &documents;
  const BlockUnderTest whole(shape, GetParam().lora, 0, options);
  whole.make_lively();
  const auto expected = whole.forward_backward(context, input, grad, /*recompute=*/false);
  for (const std::int64_t piece_rows : {2, 8, 16}) {
    for (const bool recompute : {false, true}) {
      SCOPED_TRACE(testing::Message() << piece_rows << " rows, recompute " << recompute);
      const BlockUnderTest cut(shape, GetParam().lora, piece_rows, options);
      cut.make_lively();
      const auto made = cut.forward_backward(context, input, grad, recompute);
      EXPECT_TRUE(made.output.allclose(expected.output, 1e-10, 1e-10));
      EXPECT_TRUE(made.grad_input.allclose(expected.grad_input, 1e-10, 1e-10));
      EXPECT_TRUE(cut.flat_gradient().allclose(whole.flat_gradient(), 1e-10, 1e-10));
      EXPECT_GT(cut.flat_gradient().abs().max().item<double>(), 0);
    }
  }
}

// The second pass adds to all gradients. A pass that overwrites does not read what was there.
TEST_P(BlockPieces, AddToGradientsOrOverwriteThem) {
  const ModelShape shape = shape_of(GetParam(), 6);
  const auto options = at::TensorOptions().dtype(at::kDouble);
  const at::Tensor input = at::randn({2, 11, shape.hidden}, options);
  const at::Tensor grad = at::randn({2, 11, shape.hidden}, options);
  const BlockUnderTest block(shape, GetParam().lora, 4, options);
  block.make_lively();
  block.forward_backward({}, input, grad, false);
  const at::Tensor once = block.flat_gradient().clone();
  block.forward_backward({}, input, grad, true);
  EXPECT_TRUE(block.flat_gradient().allclose(2 * once, 1e-10, 1e-10));
  block.flat_gradient().zero_();
  block.fill_products(std::nan(""));
  block.forward_backward({.overwrites = true}, input, grad, false);
  EXPECT_TRUE(block.flat_gradient().equal(once));
}

TEST_P(BlockPieces, RecomputedActivationsAreTheSavedOnes) {
  const ModelShape shape = shape_of(GetParam(), 8);
  const auto options = at::TensorOptions().dtype(at::kBFloat16);
  const at::Tensor input = at::randn({2, 11, shape.hidden}).to(options);
  const BlockUnderTest block(shape, GetParam().lora, 4, options);
  block.make_lively();
  Saved kept;
  Saved again;
  block.block().forward({}, block.parameters(), input, &kept);
  block.block().recompute({}, block.parameters(), input, again);
  ASSERT_EQ(kept.tensors().size(), again.tensors().size());
  for (std::size_t i = 0; i < kept.tensors().size(); ++i) {
    ASSERT_EQ(kept.tensors()[i].defined(), again.tensors()[i].defined()) << i;
    if (kept.tensors()[i].defined()) {
      EXPECT_TRUE(kept.tensors()[i].equal(again.tensors()[i])) << i;
    }
  }
}

double distance(const at::Tensor& made, const at::Tensor& expected) {
  const at::Tensor difference = made.to(at::kDouble) - expected.to(at::kDouble);
  return (difference.norm() / expected.to(at::kDouble).norm()).item<double>();
}

TEST_P(ModelCudaBlockPieces, GiveTheResultsOfTheWholeBlockAndTheSameBits) {
#ifdef SLUICE_HAS_CUDA
  if (c10::cuda::device_count() == 0) GTEST_SKIP() << "no CUDA device in this machine";
  constexpr std::int64_t kTokens = 1000;
  const ModelShape shape = shape_of(GetParam(), 64);
  const at::Device device(at::kCUDA, 0);
  const auto options = at::TensorOptions().dtype(at::kBFloat16).device(device);
  for (const std::int64_t rows : {1, 2}) {
    const Documents documents = documents_of(rows, kTokens, device);
    const at::Tensor input = at::randn({rows, kTokens, shape.hidden}).to(options);
    const at::Tensor grad = at::randn({rows, kTokens, shape.hidden}).to(options);
    for (const bool deterministic : {false, true}) {
      SCOPED_TRACE(testing::Message() << rows << " rows, deterministic " << deterministic);
      PassContext context = {.run_seed = 5, .unit = 1, .deterministic = deterministic};
      if (GetParam().packed) context.documents = &documents;
      const BlockUnderTest whole(shape, GetParam().lora, 0, options);
      const BlockUnderTest cut(shape, GetParam().lora, 96, options);
      const BlockUnderTest again(shape, GetParam().lora, 96, options);
      for (const BlockUnderTest* it : {&whole, &cut, &again}) it->make_lively();
      const auto expected = whole.forward_backward(context, input, grad, false);
      const auto made = cut.forward_backward(context, input, grad, false);
      const auto recomputed = again.forward_backward(context, input, grad, true);
      constexpr double kRounding = 0.02;
      EXPECT_LT(distance(made.output, expected.output), kRounding);
      EXPECT_LT(distance(made.grad_input, expected.grad_input), kRounding);
      EXPECT_LT(distance(cut.flat_gradient(), whole.flat_gradient()), kRounding);
      EXPECT_TRUE(made.output.equal(recomputed.output));
      if (!deterministic) continue;
      EXPECT_TRUE(made.grad_input.equal(recomputed.grad_input));
      EXPECT_TRUE(cut.flat_gradient().equal(again.flat_gradient()));
    }
  }
#else
  GTEST_SKIP() << "this build has no CUDA code";
#endif
}

}  // namespace
}  // namespace sluice::engine
