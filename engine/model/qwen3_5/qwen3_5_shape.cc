#include "engine/model/qwen3_5/qwen3_5_shape.h"

#include <string>
#include <tuple>
#include <vector>

namespace sluice::engine {
namespace {

constexpr double kMostCount = 1 << 24;
constexpr double kMostFactor = 1e9;
constexpr std::int64_t kMostExperts = 1 << 12;

constexpr const char* kExperts = "experts";
constexpr const char* kPerToken = "experts_per_token";
constexpr const char* kExpertWidth = "expert_width";

ShapeNumber count(std::string_view key, double default_value, std::string_view meaning) {
  return {.key = key,
          .default_value = default_value,
          .minimum = 0,
          .maximum = kMostCount,
          .whole = true,
          .meaning = meaning};
}

ShapeNumber flag(std::string_view key, std::string_view meaning) {
  return {.key = key, .choices = kSwitchChoices, .meaning = meaning};
}

// A number that models without experts lack.
ShapeNumber of_experts(std::string_view key, std::string_view meaning) {
  ShapeNumber number = count(key, 0, meaning);
  number.omit_if_default = true;
  return number;
}

std::vector<ShapeNumber> make_numbers() {
  return {
      count("model.kv_heads", 0, "key and value heads of attention; 0: as many as model.heads"),
      count("model.head_dim", 256, "width of a head of attention"),
      {.key = "model.norm_epsilon",
       .default_value = 1e-6,
       .minimum = 0,
       .maximum = 1000,
       .meaning = "rms_norm_eps"},
      flag("model.tied_head",
           "use the token embedding as the output projection (tie_word_embeddings)"),
      flag("model.attention_bias", "biases in attention's linear layers"),
      {.key = "model.rope_theta",
       .default_value = 1e7,
       .minimum = 0,
       .maximum = kMostFactor,
       .meaning = "base of the rotary frequencies"},
      {.key = "model.rope_share",
       .default_value = 0.25,
       .minimum = 0,
       .maximum = 1,
       .meaning = "part of each head that is rotated, at its beginning (partial_rotary_factor)"},
      count("model.attention_interval", 4,
            "so many consecutive blocks end with one that attends (full_attention_interval); the "
            "others have a gated delta rule"),
      count("model.delta_key_heads", 16,
            "heads of queries and keys of a delta rule (linear_num_key_heads)"),
      count("model.delta_value_heads", 32,
            "heads of values of a delta rule, a multiple of delta_key_heads "
            "(linear_num_value_heads)"),
      count("model.delta_key_dim", 128, "width of those of keys (linear_key_head_dim)"),
      count("model.delta_value_dim", 128, "width of those of values (linear_value_head_dim)"),
      count("model.delta_taps", 4,
            "tokens that the convolution before a delta rule sees (linear_conv_kernel_dim)"),
      of_experts("model.experts",
                 "small feed-forward layers in each block, of which a router chooses "
                 "experts_per_token for each token (num_experts); one more computes every token, "
                 "with a width of model.ffn_multiplier times model.hidden"),
      of_experts("model.experts_per_token",
                 "experts that compute each token (num_experts_per_tok)"),
      of_experts("model.expert_width",
                 "width of an expert (moe_intermediate_size); 0: that of the one for all tokens"),
  };
}

double number(const ModelShape& shape, const char* name) { return shape.numbers.at(name); }

std::int64_t count_of(const ModelShape& shape, const char* name) {
  return static_cast<std::int64_t>(number(shape, name));
}

// 0 for a number of experts that the shape lacks.
std::int64_t count_or_0(const ModelShape& shape, const char* name) {
  const auto found = shape.numbers.find(name);
  return found == shape.numbers.end() ? 0 : static_cast<std::int64_t>(found->second);
}

constexpr BlockNames kNames = {.blocks = "layers",
                               .qkv = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"},
                               .projection = "self_attn.o_proj",
                               .mlp_in = {"mlp.gate_proj", "mlp.up_proj"},
                               .mlp_out = "mlp.down_proj",
                               .norm1 = "input_layernorm",
                               .norm2 = "post_attention_layernorm",
                               .head_norms = {"self_attn.q_norm", "self_attn.k_norm"},
                               .delta = {.in = {"linear_attn.in_proj_qkv", "linear_attn.in_proj_z",
                                                "linear_attn.in_proj_b", "linear_attn.in_proj_a"},
                                         .convolution = "linear_attn.conv1d",
                                         .decay_bias = "linear_attn.dt_bias",
                                         .decay_rate = "linear_attn.A_log",
                                         .norm = "linear_attn.norm",
                                         .out = "linear_attn.out_proj"}};

constexpr BlockNames kNamesWithExperts = [] {
  BlockNames names = kNames;
  names.mlp_in = {"gate_proj", "up_proj"};
  names.mlp_out = "down_proj";
  names.router = "mlp.gate";
  names.experts = "mlp.experts";
  names.shared = {.in = {"mlp.shared_expert.gate_proj", "mlp.shared_expert.up_proj"},
                  .out = "mlp.shared_expert.down_proj",
                  .logit = "mlp.shared_expert_gate"};
  return names;
}();

AttentionSpec attention_of(const ModelShape& shape) {
  const bool bias = number(shape, "attention_bias") != 0;
  return {.heads = shape.heads,
          .kv_heads = count_of(shape, "kv_heads"),
          .head_dim = count_of(shape, "head_dim"),
          .qkv_bias = bias,
          .output_bias = bias,
          .head_norms = true,
          .output_gate = true,
          .rope = {.theta = number(shape, "rope_theta"),
                   .original_context = shape.context_tokens,
                   .share = number(shape, "rope_share")},
          .dropout = shape.dropout,
          .in_parts = true};
}

DeltaSpec delta_of(const ModelShape& shape) {
  return {.heads = {.key_heads = count_of(shape, "delta_key_heads"),
                    .value_heads = count_of(shape, "delta_value_heads"),
                    .key_dim = count_of(shape, "delta_key_dim"),
                    .value_dim = count_of(shape, "delta_value_dim")},
          .taps = count_of(shape, "delta_taps")};
}

ExpertsSpec experts_of(const ModelShape& shape) {
  if (!has_qwen3_5_experts(shape)) return {};
  const std::int64_t width = count_or_0(shape, kExpertWidth);
  return {.count = count_or_0(shape, kExperts),
          .per_token = count_or_0(shape, kPerToken),
          .width = width == 0 ? shape.ffn() : width,
          .renormalises = true,
          .shared = true};
}

Status check_experts(const ModelShape& shape) {
  const std::int64_t count = count_or_0(shape, kExperts);
  const std::int64_t per_token = count_or_0(shape, kPerToken);
  if (count == 0) {
    for (const char* const key : {kPerToken, kExpertWidth})
      if (count_or_0(shape, key) != 0)
        return cannot_build(std::string(key) + " is for a model with experts: set experts, too");
    return {};
  }
  if (count > kMostExperts)
    return cannot_build("experts is " + std::to_string(count) + "; it must be at most " +
                        std::to_string(kMostExperts));
  if (per_token < 1 || per_token > count)
    return cannot_build("experts_per_token is " + std::to_string(per_token) +
                        "; with experts it must be from 1 to their number, " +
                        std::to_string(count));
  return {};
}

Status check_attention(const AttentionSpec& attention) {
  constexpr std::int64_t kMostHeadDim = 256;
  if (attention.kv_heads < 1 || attention.heads % attention.kv_heads != 0)
    return cannot_build(std::to_string(attention.heads) + " heads cannot be divided among " +
                        std::to_string(attention.kv_heads) +
                        " key and value heads (kv_heads): make heads a multiple of kv_heads");
  if (attention.head_dim < 1 || attention.head_dim > kMostHeadDim)
    return cannot_build("head_dim is " + std::to_string(attention.head_dim) +
                        "; it must be from 1 to " + std::to_string(kMostHeadDim));
  const std::int64_t rotated = attention.rope.rotated(attention.head_dim);
  if (rotated < 2 || rotated % 2 != 0)
    return cannot_build("rope_share rotates " + std::to_string(rotated) + " of " +
                        std::to_string(attention.head_dim) +
                        " numbers of a head; these are rotated in pairs, so it must be at least 2 "
                        "and even");
  if (!(attention.rope.theta > 1))
    return cannot_build("rope_theta is " + std::to_string(attention.rope.theta) +
                        "; it must be more than 1");
  return {};
}

Status check_delta(const DeltaSpec& delta) {
  const DeltaHeads& heads = delta.heads;
  if (heads.key_heads < 1 || heads.value_heads < 1 || heads.value_heads % heads.key_heads != 0)
    return cannot_build(std::to_string(heads.value_heads) +
                        " heads of values (delta_value_heads) cannot be divided among " +
                        std::to_string(heads.key_heads) +
                        " of keys (delta_key_heads): make it a multiple of that");
  constexpr std::int64_t kMostDim = 1024;
  constexpr std::int64_t kMostTaps = 64;
  for (const auto& [name, value, most] : {std::tuple{"delta_key_dim", heads.key_dim, kMostDim},
                                          {"delta_value_dim", heads.value_dim, kMostDim},
                                          {"delta_taps", delta.taps, kMostTaps}})
    if (value < 1 || value > most)
      return cannot_build(std::string(name) + " is " + std::to_string(value) +
                          "; it must be from 1 to " + std::to_string(most));
  return {};
}

}  // namespace

std::span<const ShapeNumber> qwen3_5_numbers() {
  static const std::vector<ShapeNumber> numbers = make_numbers();
  return numbers;
}

bool has_qwen3_5_experts(const ModelShape& shape) { return count_or_0(shape, kExperts) != 0; }

const BlockNames& qwen3_5_names(bool has_experts) {
  return has_experts ? kNamesWithExperts : kNames;
}

DecoderSpec qwen3_5_spec(const ModelShape& shape) {
  return {.block = {.hidden = shape.hidden,
                    .norm = NormKind::kRmsFromOne,
                    .attention = attention_of(shape),
                    .mlp = {.width = shape.ffn(), .gated = true},
                    .experts = experts_of(shape),
                    .names = qwen3_5_names(has_qwen3_5_experts(shape)),
                    .branch_std = kInitialStd,
                    .epsilon = number(shape, "norm_epsilon")},
          .layers = shape.layers,
          .vocab = shape.vocab,
          .tied = number(shape, "tied_head") != 0,
          .token_embedding = "embed_tokens",
          .final_norm = "norm",
          .attention_interval = count_of(shape, "attention_interval"),
          .delta = delta_of(shape)};
}

Status check_qwen3_5(const ModelShape& shape) {
  const std::int64_t interval = count_of(shape, "attention_interval");
  if (interval < 1 || interval > shape.layers)
    return cannot_build("attention_interval is " + std::to_string(interval) +
                        "; it must be from 1 (every block attends) to " +
                        std::to_string(shape.layers) + " (the last block attends)");
  SLUICE_RETURN_IF_ERROR(check_experts(shape));
  SLUICE_RETURN_IF_ERROR(check_attention(attention_of(shape)));
  return check_delta(delta_of(shape));
}

void resolve_qwen3_5(ModelShape& shape) {
  double& kv_heads = shape.numbers["kv_heads"];
  if (kv_heads == 0) kv_heads = static_cast<double>(shape.heads);
  double& width = shape.numbers[kExpertWidth];
  if (width == 0 && has_qwen3_5_experts(shape)) width = static_cast<double>(shape.ffn());
}

}  // namespace sluice::engine
