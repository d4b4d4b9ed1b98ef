// Blocks whose products are computed in fp8, next to the same blocks without.
#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>

#include "engine/families/families.h"
#include "engine/model/decoder/block_costs.h"
#include "tests/engine/model/block_under_test.h"
#include "tests/engine/model/specs.h"

namespace sluice::engine {
namespace {

constexpr Fp8Recipe kFp8 = {.enabled = true};
constexpr Fp8Recipe kWideWeights = {.enabled = true, .wide_weight_gradients = true};

ModelShape shape_of(const std::string& family, std::map<std::string, double> numbers,
                    std::int64_t hidden = 64) {
  return complete({.layers = 2,
                   .hidden = hidden,
                   .heads = 4,
                   .context_tokens = 64,
                   .vocab = 99,
                   .ffn_hidden = 96,
                   .family = family,
                   .numbers = std::move(numbers)});
}

ModelShape llama(std::int64_t hidden = 64) {
  return shape_of("llama", {{"kv_heads", 2}, {"attention_bias", 1}, {"mlp_bias", 1}}, hidden);
}

ModelShape qwen3_moe() {
  return shape_of("llama", {{"architecture", architecture("qwen3_moe")},
                            {"kv_heads", 2},
                            {"head_dim", 16},
                            {"experts", 4},
                            {"experts_per_token", 2},
                            {"expert_width", 48}});
}

struct Passed {
  at::Tensor output;
  at::Tensor grad_input;
  at::Tensor gradient;
};

Passed passed(const ModelShape& shape, Fp8Recipe fp8, bool recompute = false,
              const LoraRecipe& lora = {}, at::ScalarType type = at::kBFloat16) {
  const BlockUnderTest block(shape, lora, 0, at::TensorOptions().dtype(type), 0, fp8);
  block.make_lively();
  at::manual_seed(3);
  const at::Tensor input = at::randn({2, 21, shape.hidden}).to(type);
  const at::Tensor grad = at::randn({2, 21, shape.hidden}).to(type);
  const auto made = block.forward_backward({}, input, grad, recompute);
  return {made.output - input, made.grad_input - grad, block.flat_gradient()};
}

double distance(const at::Tensor& from, const at::Tensor& to) {
  return (from.to(at::kDouble) - to.to(at::kDouble)).norm().item<double>() /
         to.to(at::kDouble).norm().item<double>();
}

TEST(Fp8Blocks, ComputeNearlyWhatTheyDoIn16Bits) {
  const std::map<std::string, ModelShape> shapes = {
      {"gpt2", shape_of("gpt2", {})},
      {"llama", llama()},
      {"qwen3_moe", qwen3_moe()},
      {"gemma3", shape_of("gemma3", {{"kv_heads", 2}, {"head_dim", 16}, {"window", 8}})},
      {"qwen3_5", shape_of("qwen3_5", {{"kv_heads", 2},
                                       {"head_dim", 16},
                                       {"attention_interval", 2},
                                       {"delta_key_heads", 2},
                                       {"delta_value_heads", 4},
                                       {"delta_key_dim", 16},
                                       {"delta_value_dim", 16}})}};
  constexpr double kMost = 0.25;   // several products after another, of e5m2 with 2 bits
  constexpr double kLeast = 0.01;  // more than bf16's own rounding
  for (const auto& [name, shape] : shapes) {
    const Passed wide = passed(shape, {}, false, {}, at::kFloat);
    const Passed in_fp8 = passed(shape, kFp8, false, {}, at::kFloat);
    for (const auto of : {&Passed::output, &Passed::grad_input, &Passed::gradient}) {
      EXPECT_LT(distance(in_fp8.*of, wide.*of), kMost) << name;
      EXPECT_GT(distance(in_fp8.*of, wide.*of), kLeast) << name;
    }
  }
}

TEST(Fp8Blocks, RecomputeTheSameBits) {
  for (const Fp8Recipe fp8 : {kFp8, kWideWeights})
    for (const ModelShape& shape : {llama(), qwen3_moe(), shape_of("gpt2", {})}) {
      const Passed saved = passed(shape, fp8);
      const Passed again = passed(shape, fp8, /*recompute=*/true);
      for (const auto of : {&Passed::output, &Passed::grad_input, &Passed::gradient})
        EXPECT_TRUE(at::equal(saved.*of, again.*of));
    }
}

TEST(Fp8Blocks, ComputeGradientsOfWeightsIn16BitsIfAsked) {
  const Passed in_fp8 = passed(llama(), kFp8);
  const Passed wide = passed(llama(), kWideWeights);
  EXPECT_TRUE(at::equal(wide.output, in_fp8.output));
  EXPECT_TRUE(at::equal(wide.grad_input, in_fp8.grad_input));
  EXPECT_GT(distance(wide.gradient, in_fp8.gradient), 0.01);
}

TEST(Fp8Blocks, TrainAdaptersOfAFrozenBase) {
  const LoraRecipe lora = {.rank = 4, .alpha = 8, .targets = {"q_proj", "down_proj"}};
  const Passed wide = passed(llama(), {}, false, lora, at::kFloat);
  const Passed in_fp8 = passed(llama(), kFp8, false, lora, at::kFloat);
  EXPECT_GT(distance(in_fp8.output, wide.output), 0.005);
  EXPECT_LT(distance(in_fp8.output, wide.output), 0.25);
  EXPECT_LT(distance(in_fp8.gradient, wide.gradient), 0.25);
}

TEST(Fp8Blocks, StayAsTheyAreWhereWidthsAreNotMultiplesOf16) {
  ModelShape shape = llama(40);
  shape.ffn_hidden = 72;
  const Passed without = passed(shape, {});
  const Passed with = passed(shape, kFp8);
  for (const auto of : {&Passed::output, &Passed::grad_input, &Passed::gradient})
    EXPECT_TRUE(at::equal(with.*of, without.*of));
  BlockSpec spec = spec_of(shape).block;
  spec.fp8 = kFp8;
  EXPECT_EQ(block_fp8_work(spec, 2).flops.forward, 0);
}

// Without experts and a router, all products of a token that are no scores.
TEST(Fp8Blocks, CountTheProductsThatAreInFp8) {
  for (const char* const preset : {"gpt2-xl", "qwen2.5-7b", "gemma3-12b", "qwen3.5-9b"}) {
    BlockSpec spec = spec_of(*preset_shape(preset)).block_at(0);
    EXPECT_EQ(block_fp8_work(spec, 2).flops.forward, 0) << preset;
    spec.fp8 = kFp8;
    const Flops all = block_flops(spec, {}, 0);
    const Flops in_fp8 = block_fp8_work(spec, 2).flops;
    constexpr double kScores = 1e-3;  // of a token with itself
    EXPECT_NEAR(in_fp8.forward, all.forward, kScores * all.forward) << preset;
    EXPECT_NEAR(in_fp8.recompute, all.recompute, kScores * all.recompute) << preset;
    EXPECT_NEAR(in_fp8.backward, all.backward, kScores * all.backward) << preset;
  }
  BlockSpec experts = spec_of(*preset_shape("qwen3-30b-a3b")).block;
  experts.fp8 = kFp8;
  const double share =
      block_fp8_work(experts, 2).flops.forward / block_flops(experts, {}, 0).forward;
  EXPECT_GT(share, 0.05);
  EXPECT_LT(share, 0.5);  // attention's alone
}

}  // namespace
}  // namespace sluice::engine
