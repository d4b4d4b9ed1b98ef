// GPT-2: Radford et al., "Language Models are Unsupervised Multitask Learners", 2019.
#include <cmath>

#include "engine/families/family_table.h"

namespace sluice::engine {
namespace {

using Json = HuggingFaceConfig::Json;

constexpr double kDropout = 0.1;

constexpr BlockNames kNames = {.blocks = "h",
                               .qkv = {"attn.c_attn"},
                               .projection = "attn.c_proj",
                               .mlp_in = {"mlp.c_fc"},
                               .mlp_out = "mlp.c_proj",
                               .norm1 = "ln_1",
                               .norm2 = "ln_2"};

// Files may contain the causal mask in addition to the parameters.
bool is_mask(std::string_view name) {
  return name.starts_with("h.") &&
         (name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias"));
}

// Matrices are stored as [in, out] (Hugging Face's Conv1D), so that y = x W + b.
DecoderSpec spec(const ShapeReader& of) {
  const ModelShape& shape = of.shape();
  DecoderSpec spec = usual_spec(of);
  spec.block.norm = NormKind::kLayer;
  spec.block.attention = {.heads = shape.heads,
                          .kv_heads = shape.heads,
                          .head_dim = shape.hidden / shape.heads,
                          .qkv_bias = true,
                          .output_bias = true,
                          .dropout = shape.dropout,
                          .scales = of.on("scale_attention"),
                          .scales_by_layer = of.on("scale_attention_by_layer")};
  spec.block.mlp = {.width = shape.ffn(),
                    .bias = true,
                    .activation = static_cast<Activation>(of.count("activation"))};
  spec.block.stores_in_first = true;
  spec.block.vectors_by_branch = true;
  // Each block adds two branches to the residual stream, whose variance should not grow with them.
  spec.block.branch_std = kInitialStd / std::sqrt(2.0F * static_cast<float>(shape.layers));
  spec.block.residual_dropout = shape.dropout;
  spec.positions = shape.context_tokens;
  spec.token_embedding = "wte";
  spec.position_embedding = "wpe";
  spec.final_norm = "ln_f";
  spec.embedding_dropout = shape.dropout;
  return spec;
}

// One dropout is used for all three.
void compare_dropouts(ConfigReading& reading) {
  bool differ = false;
  for (const char* const key : {"embd_pdrop", "attn_pdrop"}) {
    reading.config.refuse_null(key);
    if (reading.config.probability(key, kDropout) != reading.shape().dropout) differ = true;
  }
  if (differ)
    reading.model.notes.emplace_back(
        "its dropouts differ (resid_pdrop, embd_pdrop, attn_pdrop): resid_pdrop is used for all "
        "three (model.dropout)");
}

// null: four times the width.
const ConfigPart kInner = {
    .keys = "n_inner",
    .read =
        [](ConfigReading& reading) {
          reading.shape().ffn_hidden = reading.config.count("n_inner", 4 * reading.shape().hidden);
        },
    .write =
        [](const ShapeReader& of, Json& json) {
          const ModelShape& shape = of.shape();
          json["n_inner"] = shape.ffn() == 4 * shape.hidden ? Json() : Json(shape.ffn());
        }};

// Under GPT-2's name, or under the one common to transformers' models.
void add_size(std::vector<ConfigRow>& rows, std::string_view key, std::string_view common,
              std::int64_t ModelShape::*size, std::int64_t of_class) {
  rows.push_back(size_row(key, size, of_class));
  rows.push_back(
      {.key = common, .size = size, .null = ConfigNull::kMissing, .use = ConfigUse::kRead});
}

std::vector<ConfigRow> rows() {
  std::vector<ConfigRow> rows;
  add_size(rows, "n_layer", "num_hidden_layers", &ModelShape::layers, 12);
  add_size(rows, "n_embd", "hidden_size", &ModelShape::hidden, 768);
  add_size(rows, "n_head", "num_attention_heads", &ModelShape::heads, 12);
  add_size(rows, "n_positions", "max_position_embeddings", &ModelShape::context_tokens, 1024);
  const ConfigRow others[] = {
      {.key = "n_ctx",  // llama.cpp's converter reads this one
       .size = &ModelShape::context_tokens,
       .use = ConfigUse::kWritten},
      {.key = "n_inner", .size = &ModelShape::ffn_hidden, .part = kInner},
      size_row("vocab_size", &ModelShape::vocab, 50257),
      {.key = "activation_function",
       .number = {.key = "model.activation",
                  .choices = "gelu_new|gelu|relu|silu",  // in the order of Activation
                  .omit_if_default = true,
                  .meaning = "activation function of the feed-forward layer (activation_function); "
                             "gelu_new is the tanh approximation, gelu is exact"},
       // transformers has several names for functions that differ only in rounding.
       .synonyms = {{"gelu_pytorch_tanh", "gelu_new"},
                    {"gelu_python_tanh", "gelu_new"},
                    {"gelu_fast", "gelu_new"},
                    {"gelu_accurate", "gelu_new"},
                    {"gelu_python", "gelu"},
                    {"swish", "silu"}}},
      {.key = "layer_norm_epsilon",
       .number = {.key = "model.norm_epsilon",
                  .default_value = 1e-5,
                  .minimum = 1e-12,
                  .maximum = 1,
                  .omit_if_default = true,
                  .meaning = "layer_norm_epsilon"}},
      {.key = "resid_pdrop", .dropout = &ModelShape::dropout, .of_class = kDropout},
      {.key = "embd_pdrop", .dropout = &ModelShape::dropout, .use = ConfigUse::kWritten},
      {.key = "attn_pdrop", .dropout = &ModelShape::dropout, .use = ConfigUse::kWritten},
      {.key = "tie_word_embeddings",
       .number = later(switch_number(
           "model.tied_head", true,
           "use the token embedding as the output projection (tie_word_embeddings)"))},
      {.key = "scale_attn_weights",
       .number = later(switch_number(
           "model.scale_attention", true,
           "divide attention scores by the square root of the head width (scale_attn_weights)")),
       .use = ConfigUse::kWrittenIfOther},
      {.key = "scale_attn_by_inverse_layer_idx",
       .number = later(switch_number("model.scale_attention_by_layer", false,
                                     "also divide attention scores by the block's number, counted "
                                     "from 1 (scale_attn_by_inverse_layer_idx)")),
       .use = ConfigUse::kWrittenIfOther},
      only_row("add_cross_attention", {false}),
      // Attention is always computed in fp32 here, so both are equal up to rounding.
      only_row("reorder_and_upcast_attn", {false, true})};
  rows.insert(rows.end(), std::begin(others), std::end(others));
  return rows;
}

NamedShape gpt2(std::string_view name, std::int64_t layers, std::int64_t hidden, std::int64_t heads,
                std::int64_t context) {
  return {.name = name,
          .shape = {.layers = layers,
                    .hidden = hidden,
                    .heads = heads,
                    .context_tokens = context,
                    .vocab = 50257,
                    .dropout = kDropout}};
}

}  // namespace

FamilyTable gpt2_table() {
  return {
      .name = kGpt2Family,
      .classes = {{.model_type = "gpt2",
                   .architecture = "GPT2LMHeadModel",
                   .models = "GPT-2s",
                   .names = &kNames,
                   .begin = 50256,
                   .end = 50256}},
      .rows = rows(),
      // Table 2 of the paper.
      .presets = {gpt2("gpt2-small", 12, 768, 12, 1024), gpt2("gpt2-medium", 24, 1024, 16, 1024),
                  gpt2("gpt2-large", 36, 1280, 20, 1024), gpt2("gpt2-xl", 48, 1600, 25, 1024),
                  gpt2("gpt-lite", 12, 768, 12, 2048)},
      .defaults = {.dropout = kDropout},
      .spec = &spec,
      .finish = &compare_dropouts,
      .has_adapters = false,
      .prefix = "transformer.",
      .token_embedding = "wte.weight",
      // transformers treats names without the prefix as those of a model without a head.
      .prefixes_tied_exports = false,
      .is_buffer = &is_mask,
      .writes_older_dtype = true};
}

}  // namespace sluice::engine
