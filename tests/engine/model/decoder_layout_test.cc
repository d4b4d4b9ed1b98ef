#include "engine/model/decoder/decoder_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "engine/families/families.h"
#include "engine/model/decoder/block_costs.h"
#include "tests/engine/model/specs.h"

namespace sluice::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::IsSupersetOf;

std::vector<std::string> names_in(const UnitLayout& layout) {
  std::vector<std::string> names;
  for (const ParameterSpec& parameter : layout.parameters) names.push_back(parameter.name);
  return names;
}

BlockSpec gpt2() {
  return spec_of({.layers = 2, .hidden = 48, .heads = 4, .context_tokens = 8, .vocab = 50}).block;
}

// With everything that a Llama's block can have.
BlockSpec llama() {
  BlockSpec block = spec_of({.layers = 1,
                             .hidden = 48,
                             .heads = 4,
                             .context_tokens = 8,
                             .vocab = 50,
                             .ffn_hidden = 56,
                             .family = "llama",
                             .numbers = {{"kv_heads", 2},
                                         {"head_dim", 10},
                                         {"attention_bias", 1},
                                         {"mlp_bias", 1},
                                         {"window", 3}}})
                        .block_at(0);
  block.attention.head_norms = true;
  return block;
}

// Three experts under Qwen3-MoE's names, or Mixtral's.
BlockSpec with_experts(std::string_view model_type) {
  return spec_of({.layers = 1,
                  .hidden = 48,
                  .heads = 4,
                  .context_tokens = 8,
                  .vocab = 50,
                  .ffn_hidden = 56,
                  .family = "llama",
                  .numbers = {{"architecture", architecture(model_type)},
                              {"kv_heads", 2},
                              {"head_dim", 10},
                              {"experts", 3},
                              {"experts_per_token", 2}}})
      .block_at(0);
}

BlockSpec with_shared_expert() {
  BlockSpec block = with_experts("qwen3_moe");
  block.experts.shared = true;
  block.mlp.width = 24;
  block.names.shared = {.in = {"mlp.shared_expert.gate_proj", "mlp.shared_expert.up_proj"},
                        .out = "mlp.shared_expert.down_proj",
                        .logit = "mlp.shared_expert_gate"};
  return block;
}

// Stores of runs and checkpoints have parameters in this order.
TEST(DecoderLayout, KeepsTheFlatOrderOfEachFamily) {
  EXPECT_THAT(names_in(block_layout(gpt2(), 7)),
              ElementsAre("h.7.attn.c_attn.weight", "h.7.attn.c_proj.weight", "h.7.mlp.c_fc.weight",
                          "h.7.mlp.c_proj.weight", "h.7.ln_1.weight", "h.7.ln_1.bias",
                          "h.7.attn.c_attn.bias", "h.7.attn.c_proj.bias", "h.7.ln_2.weight",
                          "h.7.ln_2.bias", "h.7.mlp.c_fc.bias", "h.7.mlp.c_proj.bias"));
  EXPECT_THAT(
      names_in(block_layout(llama(), 0)),
      ElementsAre("layers.0.self_attn.q_proj.weight", "layers.0.self_attn.k_proj.weight",
                  "layers.0.self_attn.v_proj.weight", "layers.0.self_attn.o_proj.weight",
                  "layers.0.mlp.gate_proj.weight", "layers.0.mlp.up_proj.weight",
                  "layers.0.mlp.down_proj.weight", "layers.0.input_layernorm.weight",
                  "layers.0.post_attention_layernorm.weight", "layers.0.self_attn.q_norm.weight",
                  "layers.0.self_attn.k_norm.weight", "layers.0.self_attn.q_proj.bias",
                  "layers.0.self_attn.k_proj.bias", "layers.0.self_attn.v_proj.bias",
                  "layers.0.self_attn.o_proj.bias", "layers.0.mlp.gate_proj.bias",
                  "layers.0.mlp.up_proj.bias", "layers.0.mlp.down_proj.bias"));
}

TEST(DecoderLayout, NamesEachMatrixOfEachExpert) {
  EXPECT_THAT(
      names_in(block_layout(with_experts("qwen3_moe"), 11)),
      ElementsAre(
          "layers.11.self_attn.q_proj.weight", "layers.11.self_attn.k_proj.weight",
          "layers.11.self_attn.v_proj.weight", "layers.11.self_attn.o_proj.weight",
          "layers.11.mlp.experts.0.gate_proj.weight", "layers.11.mlp.experts.0.up_proj.weight",
          "layers.11.mlp.experts.1.gate_proj.weight", "layers.11.mlp.experts.1.up_proj.weight",
          "layers.11.mlp.experts.2.gate_proj.weight", "layers.11.mlp.experts.2.up_proj.weight",
          "layers.11.mlp.experts.0.down_proj.weight", "layers.11.mlp.experts.1.down_proj.weight",
          "layers.11.mlp.experts.2.down_proj.weight", "layers.11.mlp.gate.weight",
          "layers.11.input_layernorm.weight", "layers.11.post_attention_layernorm.weight",
          "layers.11.self_attn.q_norm.weight", "layers.11.self_attn.k_norm.weight"));
  const std::vector<std::string> mixtral = names_in(block_layout(with_experts("mixtral"), 0));
  EXPECT_THAT(mixtral, IsSupersetOf({"layers.0.block_sparse_moe.gate.weight",
                                     "layers.0.block_sparse_moe.experts.2.w1.weight",
                                     "layers.0.block_sparse_moe.experts.2.w2.weight",
                                     "layers.0.block_sparse_moe.experts.2.w3.weight"}));
}

// In a base of 8 bits the matrices before it are rounded.
TEST(DecoderLayout, TheRouterKeepsItsPrecisionAndFollowsTheMatrices) {
  const UnitLayout layout = block_layout(with_experts("mixtral"), 0);
  std::uint64_t router = 0;
  std::uint64_t last_matrix = 0;
  for (const ParameterSpec& parameter : layout.parameters) {
    if (parameter.keeps_precision) {
      EXPECT_THAT(parameter.name, EndsWith("block_sparse_moe.gate.weight"));
      router = parameter.first_element;
    } else if (parameter.group == kDecayed) {
      last_matrix = std::max(last_matrix, parameter.first_element);
    }
  }
  EXPECT_GT(router, last_matrix);
}

TEST(DecoderLayout, OfASharedExpertTheLogitKeepsItsPrecisionAndFollowsTheMatrices) {
  const std::vector<std::string> names = names_in(block_layout(with_shared_expert(), 2));
  const auto at = [&](const char* name) {
    return std::find(names.begin(), names.end(), name) - names.begin();
  };
  const auto of_block = static_cast<std::ptrdiff_t>(names.size());
  EXPECT_LT(at("layers.2.self_attn.o_proj.weight"),
            at("layers.2.mlp.shared_expert.gate_proj.weight"));
  EXPECT_EQ(at("layers.2.mlp.shared_expert.up_proj.weight"),
            at("layers.2.mlp.shared_expert.gate_proj.weight") + 1);
  EXPECT_LT(at("layers.2.mlp.shared_expert.down_proj.weight"),
            at("layers.2.mlp.experts.0.gate_proj.weight"));
  EXPECT_EQ(at("layers.2.mlp.shared_expert_gate.weight"), at("layers.2.mlp.gate.weight") + 1);
  EXPECT_LT(at("layers.2.mlp.shared_expert_gate.weight"), of_block);
  for (const ParameterSpec& parameter : block_layout(with_shared_expert(), 2).parameters)
    EXPECT_EQ(parameter.keeps_precision, parameter.name.ends_with("gate.weight")) << parameter.name;
}

TEST(DecoderLayout, AdaptersOfExpertsFollowThoseOfTheSharedOne) {
  const BlockSpec block = with_shared_expert();
  EXPECT_THAT(adapter_targets(block.names),
              ElementsAre("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj",
                          "down_proj", "shared_expert_gate", "experts"));
  const LoraRecipe lora = {
      .rank = 2, .alpha = 4, .targets = {"shared_expert_gate", "down_proj", "gate_proj"}};
  EXPECT_THAT(names_in(adapter_layout(block, lora, 0)),
              ElementsAre("layers.0.mlp.shared_expert.gate_proj.lora_A.weight",
                          "layers.0.mlp.shared_expert.gate_proj.lora_B.weight",
                          "layers.0.mlp.shared_expert.down_proj.lora_A.weight",
                          "layers.0.mlp.shared_expert.down_proj.lora_B.weight",
                          "layers.0.mlp.shared_expert_gate.lora_A.weight",
                          "layers.0.mlp.shared_expert_gate.lora_B.weight"));
  // By PEFT's names: those of down wrap those of gate and up.
  const UnitLayout of_experts = adapter_layout(
      block, {.rank = 2, .alpha = 4, .targets = {"shared_expert_gate", "experts"}}, 0);
  EXPECT_THAT(names_in(of_experts), ElementsAre("layers.0.mlp.shared_expert_gate.lora_A.weight",
                                                "layers.0.mlp.shared_expert_gate.lora_B.weight",
                                                "layers.0.mlp.experts.base_layer.lora_A.weight",
                                                "layers.0.mlp.experts.base_layer.lora_B.weight",
                                                "layers.0.mlp.experts.lora_A.weight",
                                                "layers.0.mlp.experts.lora_B.weight"));
  const BlockParameters places = block_parameters(block, lora);
  EXPECT_EQ(places.mlp_in.adapters[1], kNoParameter);
  EXPECT_EQ(places.shared_logit.adapters[0], places.mlp_out.adapters[0] + 2);
}

void expect_at(const UnitLayout& layout, int place, const std::string& name) {
  ASSERT_GE(place, 0) << name;
  ASSERT_LT(place, static_cast<int>(layout.parameters.size())) << name;
  EXPECT_THAT(layout.parameters[static_cast<std::size_t>(place)].name, EndsWith(name));
}

TEST(DecoderLayout, PlacesAreThoseOfTheNames) {
  for (const BlockSpec& block : {gpt2(), llama()}) {
    const UnitLayout layout = block_layout(block, 0);
    const BlockParameters places = block_parameters(block);
    const auto expect_products = [&](const BlockProducts& products, std::string_view first) {
      expect_at(layout, products.weight, "." + std::string(first) + ".weight");
      expect_at(layout, products.bias, "." + std::string(first) + ".bias");
    };
    expect_products(places.qkv, block.names.qkv[0]);
    expect_products(places.projection, block.names.projection);
    expect_products(places.mlp_in, block.names.mlp_in[0]);
    expect_products(places.mlp_out, block.names.mlp_out);
    expect_at(layout, places.norm1.gain, std::string(block.names.norm1) + ".weight");
    expect_at(layout, places.norm2.gain, std::string(block.names.norm2) + ".weight");
  }
  EXPECT_EQ(block_parameters(llama()).norm1.bias, kNoParameter);
  expect_at(block_layout(gpt2(), 0), block_parameters(gpt2()).norm2.bias, "ln_2.bias");
  expect_at(block_layout(llama(), 0), block_parameters(llama()).query_norm, "q_norm.weight");
  EXPECT_EQ(block_parameters(gpt2()).query_norm, kNoParameter);
}

TEST(DecoderLayout, ExpertsAreInSequenceWithTheirShapes) {
  const BlockSpec block = with_experts("mixtral");
  const UnitLayout layout = block_layout(block, 0);
  const BlockParameters places = block_parameters(block);
  expect_at(layout, places.router, "gate.weight");
  expect_at(layout, places.expert_in, "experts.0.w1.weight");
  expect_at(layout, places.expert_in + 3, "experts.1.w3.weight");
  expect_at(layout, places.expert_out, "experts.0.w2.weight");
  expect_at(layout, places.expert_out + 2, "experts.2.w2.weight");
  EXPECT_EQ(places.mlp_in.weight, kNoParameter);
  EXPECT_EQ(places.mlp_out.weight, kNoParameter);
  const auto shape_at = [&](int place) {
    return layout.parameters[static_cast<std::size_t>(place)].shape;
  };
  EXPECT_THAT(shape_at(places.router), ElementsAre(3, 48));
  EXPECT_THAT(shape_at(places.expert_in), ElementsAre(56, 48));
  EXPECT_THAT(shape_at(places.expert_out), ElementsAre(48, 56));
  for (int place = places.router; place < places.expert_out + 3; ++place) {
    const ParameterSpec& matrix = layout.parameters[static_cast<std::size_t>(place)];
    EXPECT_TRUE(matrix.gradient_is_product) << matrix.name;
    EXPECT_EQ(matrix.group, kDecayed) << matrix.name;
    EXPECT_GT(matrix.initial_std, 0) << matrix.name;
  }
  EXPECT_EQ(block_parameters(llama()).router, kNoParameter);
}

TEST(DecoderLayout, HeadsLendTheirNormAndBorrowOrOwnTheirOutput) {
  for (const bool is_tied : {false, true})
    for (const NormKind norm : {NormKind::kLayer, NormKind::kRms}) {
      DecoderSpec spec = {.block = gpt2(), .layers = 2, .vocab = 50, .tied = is_tied};
      spec.block.norm = norm;
      spec.final_norm = "final";
      const UnitLayout layout = head_layout(spec);
      const HeadParameters places = head_parameters(spec);
      expect_at(layout, places.norm.gain, "final.weight");
      if (norm == NormKind::kLayer) expect_at(layout, places.norm.bias, "final.bias");
      if (is_tied)
        EXPECT_EQ(places.output, static_cast<int>(layout.parameters.size()));
      else
        expect_at(layout, places.output, "lm_head.weight");
    }
}

TEST(DecoderLayout, AdaptersComeAfterTheBlockInTheOrderOfTheirTargets) {
  EXPECT_THAT(adapter_targets(llama().names), ElementsAre("q_proj", "k_proj", "v_proj", "o_proj",
                                                          "gate_proj", "up_proj", "down_proj"));
  const LoraRecipe lora = {.rank = 2, .alpha = 4, .targets = {"down_proj", "v_proj", "up_proj"}};
  const BlockSpec block = llama();
  const UnitLayout layout = adapter_layout(block, lora, 1);
  const BlockParameters places = block_parameters(block, lora);
  const int first = static_cast<int>(block_layout(block, 0).parameters.size());
  EXPECT_EQ(places.qkv.adapters[0], kNoParameter);
  expect_at(layout, places.qkv.adapters[2] - first, "layers.1.self_attn.v_proj.lora_A.weight");
  expect_at(layout, places.mlp_in.adapters[1] - first + 1, "layers.1.mlp.up_proj.lora_B.weight");
  expect_at(layout, places.mlp_out.adapters[0] - first, "layers.1.mlp.down_proj.lora_A.weight");
  EXPECT_THAT(layout.parameters[0].shape, ElementsAre(2, 48));
  EXPECT_THAT(layout.parameters[1].shape, ElementsAre(20, 2));
  EXPECT_THAT(layout.parameters.back().shape, ElementsAre(48, 2));
}

// Whatever the spec says, a token is multiplied by each number of each matrix once, except those of
// experts that it does not choose.
TEST(DecoderCosts, ProductsAreTheMatricesOfTheLayout) {
  for (const BlockSpec& block : {gpt2(), llama(), with_experts("qwen3_moe"),
                                 with_experts("mixtral"), with_shared_expert()}) {
    double products = -static_cast<double>(block_idle_elements(block));
    for (const ParameterSpec& parameter : block_layout(block, 0).parameters)
      if (parameter.group == kDecayed) products += static_cast<double>(parameter.elements);
    const double scores = 2 * 2 * attention_costs(block).score_products(5);
    EXPECT_DOUBLE_EQ(block_flops(block, {}, 5).forward, 2 * products + scores);
    const LoraRecipe lora = {.rank = 2, .alpha = 4, .targets = {"o_proj", "c_fc"}};
    const AdapterNumbers adapters = adapter_numbers(block, lora);
    EXPECT_GT(adapters.in, 0);
    EXPECT_DOUBLE_EQ(block_flops(block, adapters, 5).forward,
                     2 * (products + adapters.in + adapters.out) + scores);
  }
}

TEST(DecoderCosts, AWindowLeavesFewerScores) {
  BlockSpec block = llama();
  const double windowed = block_flops(block, {}, 64).forward;
  block.attention.window = 0;
  EXPECT_GT(block_flops(block, {}, 64).forward, windowed);
}

}  // namespace
}  // namespace sluice::engine
