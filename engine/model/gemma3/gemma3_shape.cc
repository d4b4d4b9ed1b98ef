#include "engine/model/gemma3/gemma3_shape.h"

#include <cmath>
#include <string>
#include <vector>

namespace sluice::engine {
namespace {

constexpr double kMostCount = 1 << 24;
constexpr double kMostFactor = 1e9;

ShapeNumber count(std::string_view key, double default_value, std::string_view meaning) {
  return {.key = key,
          .default_value = default_value,
          .minimum = 0,
          .maximum = kMostCount,
          .whole = true,
          .meaning = meaning};
}

ShapeNumber factor(std::string_view key, double default_value, std::string_view meaning) {
  return {.key = key,
          .default_value = default_value,
          .minimum = 0,
          .maximum = kMostFactor,
          .meaning = meaning};
}

ShapeNumber flag(std::string_view key, double default_value, std::string_view meaning) {
  return {
      .key = key, .default_value = default_value, .choices = kSwitchChoices, .meaning = meaning};
}

std::vector<ShapeNumber> make_numbers() {
  return {
      count("model.kv_heads", 0, "key and value heads; 0: as many as model.heads"),
      count("model.head_dim", 256, "width of a head"),
      {.key = "model.norm_epsilon",
       .default_value = 1e-6,
       .minimum = 0,
       .maximum = 1000,
       .meaning = "rms_norm_eps"},
      flag("model.tied_head", 1,
           "use the token embedding as the output projection (tie_word_embeddings)"),
      flag("model.attention_bias", 0, "biases in attention's linear layers"),
      count("model.query_scalar", 0,
            "scores are divided by its square root (query_pre_attn_scalar); 0: model.head_dim"),
      count("model.window", 1024,
            "sliding window in tokens: the keys that a query sees, including its own "
            "(sliding_window)"),
      count("model.full_interval", 6,
            "so many consecutive blocks end with one that sees the whole text; the others have "
            "the window (sliding_window_pattern)"),
      factor("model.rope_theta", 1e6, "base of the rotary frequencies without the window"),
      factor("model.rope_factor", 1,
             "factor by which positions of these blocks are divided (linear scaling)"),
      factor("model.window_rope_theta", 10000,
             "base of the rotary frequencies with the window (rope_local_base_freq)"),
  };
}

double number(const ModelShape& shape, const char* name) { return shape.numbers.at(name); }

std::int64_t count_of(const ModelShape& shape, const char* name) {
  return static_cast<std::int64_t>(number(shape, name));
}

constexpr BlockNames kNames = {
    .blocks = "layers",
    .qkv = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"},
    .projection = "self_attn.o_proj",
    .mlp_in = {"mlp.gate_proj", "mlp.up_proj"},
    .mlp_out = "mlp.down_proj",
    .norm1 = "input_layernorm",
    .norm2 = "pre_feedforward_layernorm",
    .head_norms = {"self_attn.q_norm", "self_attn.k_norm"},
    .branch_norms = {"post_attention_layernorm", "post_feedforward_layernorm"}};

AttentionSpec attention_of(const ModelShape& shape) {
  const bool bias = number(shape, "attention_bias") != 0;
  const double rope_factor = number(shape, "rope_factor");
  return {.heads = shape.heads,
          .kv_heads = count_of(shape, "kv_heads"),
          .head_dim = count_of(shape, "head_dim"),
          .qkv_bias = bias,
          .output_bias = bias,
          .head_norms = true,
          .rope = {.theta = number(shape, "rope_theta"),
                   .scaling = rope_factor == 1 ? RopeScaling::kNone : RopeScaling::kLinear,
                   .factor = rope_factor,
                   .original_context = shape.context_tokens},
          .dropout = shape.dropout,
          .in_parts = true,
          .query_scalar = number(shape, "query_scalar")};
}

Status check_attention(const AttentionSpec& attention) {
  constexpr std::int64_t kMostHeadDim = 256;
  if (attention.kv_heads < 1 || attention.heads % attention.kv_heads != 0)
    return cannot_build(std::to_string(attention.heads) + " heads cannot be divided among " +
                        std::to_string(attention.kv_heads) +
                        " key and value heads (kv_heads): make heads a multiple of kv_heads");
  if (attention.head_dim < 2 || attention.head_dim > kMostHeadDim || attention.head_dim % 2 != 0)
    return cannot_build("head_dim is " + std::to_string(attention.head_dim) +
                        "; it must be even and from 2 to " + std::to_string(kMostHeadDim));
  return {};
}

}  // namespace

std::span<const ShapeNumber> gemma3_numbers() {
  static const std::vector<ShapeNumber> numbers = make_numbers();
  return numbers;
}

const BlockNames& gemma3_names() { return kNames; }

DecoderSpec gemma3_spec(const ModelShape& shape) {
  const std::int64_t interval = count_of(shape, "full_interval");
  const bool any = interval > 1;  // otherwise no block has the window
  return {
      .block = {.hidden = shape.hidden,
                .norm = NormKind::kRmsFromOne,
                .attention = attention_of(shape),
                .mlp = {.width = shape.ffn(), .gated = true, .activation = Activation::kGeluTanh},
                .names = kNames,
                .branch_std = kInitialStd,
                .epsilon = number(shape, "norm_epsilon")},
      .layers = shape.layers,
      .vocab = shape.vocab,
      .tied = number(shape, "tied_head") != 0,
      .token_embedding = "embed_tokens",
      .final_norm = "norm",
      .embedding_scale = std::sqrt(static_cast<double>(shape.hidden)),
      .window = {.tokens = any ? count_of(shape, "window") : 0,
                 .windowed = any ? interval - 1 : 0,
                 .full = any ? 1 : 0},
      .window_rope = {.theta = number(shape, "window_rope_theta"),
                      .original_context = shape.context_tokens}};
}

Status check_gemma3(const ModelShape& shape) {
  if (count_of(shape, "full_interval") < 1)
    return cannot_build("full_interval is 0; it must be at least 1 (every block sees all)");
  if (count_of(shape, "window") < 1)
    return cannot_build(
        "window is 0; it must be at least 1, or full_interval 1 for models without "
        "windows");
  for (const char* const name : {"rope_theta", "window_rope_theta"})
    if (!(number(shape, name) > 1))
      return cannot_build(std::string(name) + " is " + std::to_string(number(shape, name)) +
                          "; it must be more than 1");
  if (!(number(shape, "rope_factor") >= 1))
    return cannot_build("rope_factor is " + std::to_string(number(shape, "rope_factor")) +
                        "; it must be at least 1");
  if (!(number(shape, "query_scalar") > 0))
    return cannot_build("query_scalar is " + std::to_string(number(shape, "query_scalar")) +
                        "; it must be more than 0");
  return check_attention(attention_of(shape));
}

void resolve_gemma3(ModelShape& shape) {
  double& kv_heads = shape.numbers["kv_heads"];
  if (kv_heads == 0) kv_heads = static_cast<double>(shape.heads);
  double& scalar = shape.numbers["query_scalar"];
  if (scalar == 0) scalar = shape.numbers["head_dim"];
}

}  // namespace sluice::engine
