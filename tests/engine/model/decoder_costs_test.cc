#include <gtest/gtest.h>

#include <algorithm>

#include "engine/families/families.h"
#include "engine/model/decoder/block_costs.h"
#include "engine/model/decoder/block_memory.h"
#include "engine/model/decoder/decoder_kinds.h"
#include "engine/model/op_costs.h"
#include "tests/engine/model/specs.h"

namespace sluice::engine {
namespace {

std::uint64_t peak_of(const ModelShape& shape, const PassShape& pass,
                      const PeakOptions& options = {}) {
  return block_peak_bytes(spec_of(shape).block, {}, pass, options);
}

std::uint64_t unit_input_bytes(const ModelShape& shape, const PassShape& pass) {
  return static_cast<std::uint64_t>(pass.rows() * shape.hidden * pass.number_bytes);
}

// The number of matrix elements that a token is multiplied by, from the layouts.
double multiplied(const UnitLayout& layout) {
  double sum = 0;
  for (const ParameterSpec& parameter : layout.parameters) {
    if (parameter.group == kDecayed) sum += static_cast<double>(parameter.elements);
  }
  return sum;
}

// A plan must hold whether or not the processor multiplies 16-bit numbers fast.
TEST(AttentionCosts, OfTheCpuAreThoseOfTheDearerWay) {
  for (const std::int64_t kv_heads : {1, 8, 32})
    for (const std::int64_t micro_batch : {1, 8, 64})
      for (const std::int64_t window : {0, 100}) {
        const AttentionCosts attention = {
            .heads = 32, .kv_heads = kv_heads, .head_dim = 128, .window = window};
        const PassShape pass = {.micro_batch = micro_batch, .tokens = 2048};
        EXPECT_GE(attention.backward_bytes(pass, {.cpu = true}),
                  attention.backward_bytes(pass, {.cpu = true, .fast_products = true}));
      }
}

// Without a kernel, the scores of heads of 256 would be in memory.
TEST(AttentionCosts, OfWideHeadsAreThoseOfAKernelWithoutDropout) {
  const PassShape pass = {.micro_batch = 1, .tokens = 8192};
  for (const std::int64_t head_dim : {64, 128, 192, 256}) {
    const AttentionCosts attention = {.heads = 16, .kv_heads = 4, .head_dim = head_dim};
    EXPECT_LT(attention.backward_bytes(pass, {}), std::uint64_t{1} << 29) << head_dim;
    EXPECT_GT(attention.backward_bytes(pass, {.plain_attention = true}), std::uint64_t{1} << 31);
  }
  BlockSpec block = spec_of(*preset_shape("qwen3.5-9b")).block_at(3);
  const std::uint64_t without = block_peak_bytes(block, {}, pass, {});
  block.attention.dropout = 0.1;
  EXPECT_GT(block_peak_bytes(block, {}, pass, {}), 2 * without);
}

TEST(GptCosts, FlopsFollowFromTheMatricesAndTheCausalScores) {
  for (const NamedShape& it : model_presets()) {
    const std::string_view name = it.name;
    ModelShape shape = *preset_shape(name);
    shape.family = kGpt2Family;
    shape.numbers.clear();
    if (shape.hidden % shape.heads != 0) continue;  // no GPT-2
    const std::int64_t tokens = std::min(shape.context_tokens, 2 * kPieceRows);
    // A sequence has tokens * (tokens + 1) / 2 pairs; a pair costs two products of `hidden`
    // elements.
    const double pairs = 0.5 * static_cast<double>(tokens * (tokens + 1));
    const double scores = 2 * 2 * pairs * static_cast<double>(shape.hidden);
    const double per_token = scores / static_cast<double>(tokens);
    const UnitLayout layout = block_layout(spec_of(shape).block, 0);
    const double weights = 2 * multiplied(layout);
    const Flops block = block_flops(spec_of(shape).block, {}, tokens);
    EXPECT_DOUBLE_EQ(block.forward, weights + per_token) << name;
    EXPECT_DOUBLE_EQ(block.backward, 2 * weights + 2.5 * per_token) << name;
    const ParameterSpec& last =
        layout.parameters[block_parameters(spec_of(shape).block).mlp_out.weight];
    EXPECT_DOUBLE_EQ(block.forward - block.recompute, 2 * static_cast<double>(last.elements));
    const auto wte = static_cast<double>(
        embedding_layout(spec_of(shape)).parameters[token_parameter(spec_of(shape))].elements);
    EXPECT_DOUBLE_EQ(head_kind(spec_of(shape), {}, 0)->flops(1).forward, 2 * wte);
  }
}

// A delta rule's cost per token does not grow with the text; a gate is a part of the matrices.
TEST(DeltaCosts, AreThoseOfTheMatricesWhateverTheLength) {
  const DecoderSpec spec = spec_of(*preset_shape("qwen3.5-9b"));
  const UnitLayout delta = block_layout(spec.block_at(0), 0);
  double convolution = 0;
  for (const ParameterSpec& parameter : delta.parameters)
    if (parameter.shape.size() == 3) convolution += static_cast<double>(parameter.elements);
  EXPECT_EQ(convolution, 8192 * 4);
  for (const std::int64_t tokens : {1, 4096})
    EXPECT_DOUBLE_EQ(block_flops(spec.block_at(0), {}, tokens).forward,
                     2 * (multiplied(delta) - convolution));
  EXPECT_DOUBLE_EQ(block_flops(spec.block_at(3), {}, 100).forward,
                   2 * multiplied(block_layout(spec.block_at(3), 3)) +
                       4 * attention_costs(spec.block).score_products(100));
  // A state, and three tokens of the convolution, instead of keys and values.
  const ModelLayout model = decoder_layout(spec, {});
  EXPECT_EQ(model.kv_cache_bytes(1000, 2) - model.kv_cache_bytes(0, 2),
            8U * 1000 * 2 * 4 * 256 * 2);
  EXPECT_EQ(model.kv_cache_bytes(0, 2), 24U * (32 * 128 * 128 * 4 + 3 * 8192 * 2));
}

// In chunks of one token, each token has a state.
TEST(DeltaCosts, CountAStateForEachChunk) {
  const DeltaHeads heads = {.key_heads = 4, .value_heads = 8, .key_dim = 128, .value_dim = 128};
  EXPECT_GT(delta_backward_numbers(heads, 1), 3 * 128 * 128);
  EXPECT_LT(delta_backward_numbers(heads, kDeltaChunk), 6000);
}

TEST(GptCosts, RecomputeCostsLessThanAForward) {
  const ModelShape shape = *preset_shape("gpt2-xl");
  const Flops flops = block_flops(spec_of(shape).block, {}, 1024);
  EXPECT_LT(flops.recompute, 0.75 * flops.forward);
  EXPECT_GT(flops.recompute, 0.5 * flops.forward);
}

TEST(GptCosts, PaddingOfTheVocabularyCounts) {
  const ModelShape shape = *preset_shape("gpt2-small");
  const auto plain = head_kind(spec_of(shape), {}, 0);
  const auto padded = head_kind(spec_of(shape), {}, 50304);
  EXPECT_DOUBLE_EQ(padded->flops(1).forward - plain->flops(1).forward, 2.0 * (50304 - 50257) * 768);
  const PassShape pass = {.micro_batch = 8, .tokens = 1024};
  EXPECT_GT(padded->peak_bytes(pass, {}), plain->peak_bytes(pass, {}));
}

TEST(GptCosts, AFixedOrderOfSumsCostsMemoryWhereFewHeadsFillTheGpu) {
  const ModelShape shape = *preset_shape("gpt2-xl");
  const PeakOptions fixed = {.deterministic = true};
  // 25 heads: FlashAttention divides 160 multiprocessors into 7 sums of one unit input in fp32.
  const PassShape one = {.micro_batch = 1, .tokens = 1024};
  EXPECT_GT(peak_of(shape, one, fixed), (11 + 7 * 2) * unit_input_bytes(shape, one));
  EXPECT_LT(peak_of(shape, one, fixed), (11 + 8 * 2) * unit_input_bytes(shape, one));
  EXPECT_LT(peak_of(shape, one), 17 * unit_input_bytes(shape, one));
  // 200 heads: one sum, which is less than the feed-forward needs.
  const PassShape eight = {.micro_batch = 8, .tokens = 1024};
  EXPECT_EQ(peak_of(shape, eight, fixed), peak_of(shape, eight));
}

TEST(GptCosts, DropoutCostsOneMoreUnitInput) {
  ModelShape shape = *preset_shape("gpt2-xl");
  const PassShape pass = {.micro_batch = 8, .tokens = 1024};
  const std::uint64_t with = peak_of(shape, pass);
  shape.dropout = 0;
  EXPECT_EQ(with - peak_of(shape, pass), unit_input_bytes(shape, pass));
}

TEST(GptCosts, ChunksOfTheLossAreLargerOnCuda) {
  EXPECT_EQ(loss_chunk_rows(50257, /*cpu=*/true), 640);
  EXPECT_EQ(loss_chunk_rows(50257, /*cpu=*/false), 2048);
  EXPECT_EQ(loss_chunk_rows(std::int64_t{1} << 24, /*cpu=*/true), 64);
  EXPECT_EQ(loss_chunk_rows(std::int64_t{1} << 24, /*cpu=*/false), 64);
}

}  // namespace
}  // namespace sluice::engine
