// Qwen3.5 and Qwen3.6 text models, dense and with experts. Most blocks have a gated delta rule
// instead of attention; every attention_interval-th attends. A model that also sees images is read
// as its text model.
#include <string>
#include <tuple>

#include "engine/families/expert_keys.h"
#include "engine/families/family_table.h"
#include "engine/families/layer_keys.h"
#include "engine/families/rope_keys.h"

namespace sluice::engine {
namespace {

using Json = HuggingFaceConfig::Json;

constexpr std::string_view kFamily = "qwen3_5";
constexpr const char* kDeltaLayers = "linear_attention";
constexpr const char* kInterval = "full_attention_interval";
constexpr std::string_view kDense = "qwen3_5|qwen3_5_text";
constexpr std::string_view kWithExperts = "qwen3_5_moe|qwen3_5_moe_text";

constexpr BlockNames kNames = [] {
  BlockNames names = kUsualNames;
  names.delta = {.in = {"linear_attn.in_proj_qkv", "linear_attn.in_proj_z", "linear_attn.in_proj_b",
                        "linear_attn.in_proj_a"},
                 .convolution = "linear_attn.conv1d",
                 .decay_bias = "linear_attn.dt_bias",
                 .decay_rate = "linear_attn.A_log",
                 .norm = "linear_attn.norm",
                 .out = "linear_attn.out_proj"};
  return names;
}();

// One expert computes every token, as a dense feed-forward would.
constexpr BlockNames kNamesWithExperts = [] {
  BlockNames names = kNames;
  names.mlp_in = {"gate_proj", "up_proj"};
  names.mlp_out = "down_proj";
  names.router = "mlp.gate";
  names.experts = "mlp.experts";
  names.expert_adapters = "mlp.experts";
  names.shared = {.in = {"mlp.shared_expert.gate_proj", "mlp.shared_expert.up_proj"},
                  .out = "mlp.shared_expert.down_proj",
                  .logit = "mlp.shared_expert_gate"};
  return names;
}();

// Files on the Hub have such tensors, and so have exports.
constexpr auto kStacks = expert_stacks("mlp.experts", {"gate_proj", "up_proj"}, "down_proj");

// Tensors of a folder that are no part of the text model. transformers leaves out the latter, too.
bool is_left_out(std::string_view name) {
  return name.starts_with("visual.") || name.starts_with("mtp.");
}

DecoderSpec spec(const ShapeReader& of) {
  DecoderSpec spec = usual_spec(of);
  spec.block.norm = NormKind::kRmsFromOne;
  spec.block.attention.head_norms = true;
  spec.block.attention.output_gate = true;
  if (of.is(kWithExperts)) {
    const std::int64_t width = of.count("expert_width");
    spec.block.experts = {.count = of.count("experts"),
                          .per_token = of.count("experts_per_token"),
                          .width = width == 0 ? of.shape().ffn() : width,
                          .renormalises = true,
                          .shared = true};
  }
  spec.attention_interval = of.count("attention_interval");
  spec.delta = {.heads = {.key_heads = of.count("delta_key_heads"),
                          .value_heads = of.count("delta_value_heads"),
                          .key_dim = of.count("delta_key_dim"),
                          .value_dim = of.count("delta_value_dim")},
                .taps = of.count("delta_taps")};
  return spec;
}

Status check(const ShapeReader& of, const DecoderSpec& spec) {
  if (of.is(kWithExperts)) {
    SLUICE_RETURN_IF_ERROR(check_experts(spec.block.experts));
  }
  if (spec.attention_interval < 1 || spec.attention_interval > spec.layers)
    return cannot_build("attention_interval is " + std::to_string(spec.attention_interval) +
                        "; it must be from 1 (every block attends) to " +
                        std::to_string(spec.layers) + " (the last block attends)");
  const DeltaHeads& heads = spec.delta.heads;
  if (heads.key_heads < 1 || heads.value_heads < 1 || heads.value_heads % heads.key_heads != 0)
    return cannot_build(std::to_string(heads.value_heads) +
                        " heads of values (delta_value_heads) cannot be divided among " +
                        std::to_string(heads.key_heads) +
                        " of keys (delta_key_heads): make it a multiple of that");
  constexpr std::int64_t kMostDim = 1024;
  constexpr std::int64_t kMostTaps = 64;
  for (const auto& [name, value, most] : {std::tuple{"delta_key_dim", heads.key_dim, kMostDim},
                                          {"delta_value_dim", heads.value_dim, kMostDim},
                                          {"delta_taps", spec.delta.taps, kMostTaps}})
    if (value < 1 || value > most)
      return cannot_build(std::string(name) + " is " + std::to_string(value) +
                          "; it must be from 1 to " + std::to_string(most));
  return {};
}

const ConfigPart kLayers = {
    .keys = "layer_types|full_attention_interval",
    .read =
        [](ConfigReading& reading) {
          reading.config.refuse_null(kInterval);
          reading.numbers()["attention_interval"] =
              static_cast<double>(reading.config.full_interval(
                  reading.config.count(kInterval, 4), reading.shape().layers, kDeltaLayers));
        },
    .write =
        [](const ShapeReader& of, Json& json) {
          const std::int64_t interval = of.count("attention_interval");
          json[kInterval] = interval;
          json[kLayerTypes] = layer_types(of.shape().layers, interval, kDeltaLayers);
        }};

ConfigRow row(std::string_view key, const ShapeNumber& number, Json of_class = {}) {
  return {.key = key, .number = number, .of_class = std::move(of_class)};
}

ConfigRow of(std::string_view classes, ConfigRow row) {
  row.classes = classes;
  return row;
}

std::vector<ConfigRow> expert_rows() {
  std::vector<ConfigRow> rows = {
      of(kWithExperts,
         row("num_experts",
             later(count_number("model.experts", 0,
                                "small feed-forward layers in each block, of which a router "
                                "chooses experts_per_token for each token (num_experts); one more "
                                "computes every token, with a width of model.ffn_multiplier times "
                                "model.hidden; 0: a dense feed-forward")),
             256)),
      of(kWithExperts,
         row("num_experts_per_tok",
             later(count_number("model.experts_per_token", 0,
                                "experts that compute each token (num_experts_per_tok)")),
             8)),
      {.key = "moe_intermediate_size",
       .number = later(count_number("model.expert_width", 0,
                                    "width of an expert (moe_intermediate_size); 0: that of the "
                                    "one for all tokens")),
       .of_class = 512,
       .classes = kWithExperts,
       .resolve = [](const ModelShape& shape, double value) {
         return value == 0 ? static_cast<double>(shape.ffn()) : value;
       }}};
  for (ConfigRow& one : balance_rows(kWithExperts)) rows.push_back(std::move(one));
  // Keys of relatives, which transformers computes in one way here.
  for (ConfigRow& one : std::vector<ConfigRow>{only_row("norm_topk_prob", {true}),
                                               only_row("decoder_sparse_step", {1}),
                                               only_row("mlp_only_layers", {Json::array()})})
    rows.push_back(of(kWithExperts, std::move(one)));
  return rows;
}

std::vector<ConfigRow> rows() {
  std::vector<ConfigRow> rows = {
      size_row("vocab_size", &ModelShape::vocab, 248320),
      size_row("hidden_size", &ModelShape::hidden, 4096),
      of(kDense, size_row("intermediate_size", &ModelShape::ffn_hidden, 12288)),
      of(kWithExperts, size_row("shared_expert_intermediate_size", &ModelShape::ffn_hidden, 512)),
      size_row("num_hidden_layers", &ModelShape::layers, 32),
      size_row("num_attention_heads", &ModelShape::heads, 16),
      kv_heads_row(4),
      row("head_dim", count_number("model.head_dim", 256, "width of a head of attention")),
      row("linear_num_key_heads",
          count_number("model.delta_key_heads", 16,
                       "heads of queries and keys of a delta rule (linear_num_key_heads)")),
      row("linear_num_value_heads",
          count_number("model.delta_value_heads", 32,
                       "heads of values of a delta rule, a multiple of delta_key_heads "
                       "(linear_num_value_heads)")),
      row("linear_key_head_dim",
          count_number("model.delta_key_dim", 128, "width of those of keys (linear_key_head_dim)")),
      row("linear_value_head_dim",
          count_number("model.delta_value_dim", 128,
                       "width of those of values (linear_value_head_dim)")),
      row("linear_conv_kernel_dim",
          count_number("model.delta_taps", 4,
                       "tokens that the convolution before a delta rule sees "
                       "(linear_conv_kernel_dim)")),
      only_row("hidden_act", {"silu", "swish"}, ConfigUse::kReadAndWritten),
      size_row("max_position_embeddings", &ModelShape::context_tokens, 32768),
      epsilon_row(1e-6),
      tied_row(false),
      attention_bias_row(),
      {.key = "attention_dropout", .dropout = &ModelShape::dropout},
      part_row(kLayers),
      part_row(kRopeParametersPart),
      {.key = kInterval,
       .number = count_number("model.attention_interval", 4,
                              "so many consecutive blocks end with one that attends "
                              "(full_attention_interval); the others have a gated delta rule"),
       .use = ConfigUse::kOfPart},
      {.number = factor_number("model.rope_theta", 1e7, "base of the rotary frequencies")},
      rope_share_row(0.25, ConfigUse::kOfPart),
      only_row("is_causal", {true}),
      only_row("attn_output_gate", {true}),
      only_row("output_gate_type", {"swish", "silu"})};
  for (ConfigRow& one : expert_rows()) rows.push_back(std::move(one));
  return rows;
}

NamedShape model(std::string_view name, const PresetSizes& sizes, double delta_value_heads,
                 bool tied) {
  return preset(kFamily, name, sizes,
                {{"delta_value_heads", delta_value_heads}, {"tied_head", tied ? 1 : 0}});
}

NamedShape with_experts(double count, double per_token, NamedShape dense) {
  dense.shape.numbers["experts"] = count;
  dense.shape.numbers["experts_per_token"] = per_token;
  dense.shape.numbers["expert_width"] = static_cast<double>(dense.shape.ffn_hidden);
  return dense;
}

FamilyClass dense(std::string_view model_type, std::string_view text_type) {
  return {.model_type = model_type,
          .architecture = "Qwen3_5ForCausalLM",
          .models = "Qwen3.5s",
          .names = &kNames,
          .defaults = {{"rope_theta", 10000}},
          .rotates_parts = true,
          .takes_sections = true,
          .takes_kinds = false,
          .text_type = text_type};
}

FamilyClass with_experts(std::string_view model_type, std::string_view text_type) {
  FamilyClass made = dense(model_type, text_type);
  made.architecture = "Qwen3_5MoeForCausalLM";
  made.names = &kNamesWithExperts;
  for (const auto& [key, value] : std::initializer_list<std::pair<std::string_view, Json>>{
           {"num_hidden_layers", 40}, {"hidden_size", 2048}, {"num_key_value_heads", 2}})
    made.defaults.emplace_back(key, value);
  made.stacks = kStacks;
  made.exports_stacks = true;
  return made;
}

}  // namespace

FamilyTable qwen3_5_table() {
  return {
      .name = kFamily,
      .classes = {dense("qwen3_5", "qwen3_5_text"), dense("qwen3_5_text", ""),
                  with_experts("qwen3_5_moe", "qwen3_5_moe_text"),
                  with_experts("qwen3_5_moe_text", "")},
      .rows = rows(),
      // The text parts of the config.json files on the Hugging Face Hub.
      .presets = {model("qwen3.5-0.8b", {24, 1024, 8, 2, 256, 3584, 248320, 262144}, 16, true),
                  model("qwen3.5-2b", {24, 2048, 8, 2, 256, 6144, 248320, 262144}, 16, true),
                  model("qwen3.5-4b", {32, 2560, 16, 4, 256, 9216, 248320, 262144}, 32, true),
                  model("qwen3.5-9b", {32, 4096, 16, 4, 256, 12288, 248320, 262144}, 32, false),
                  model("qwen3.5-27b", {64, 5120, 24, 4, 256, 17408, 248320, 262144}, 48, false),
                  with_experts(256, 8,
                               model("qwen3.5-35b-a3b", {40, 2048, 16, 2, 256, 512, 248320, 262144},
                                     32, false)),
                  with_experts(256, 8,
                               model("qwen3.5-122b-a10b",
                                     {48, 3072, 32, 2, 256, 1024, 248320, 262144}, 64, false)),
                  with_experts(512, 10,
                               model("qwen3.5-397b-a17b",
                                     {60, 4096, 32, 2, 256, 1024, 248320, 262144}, 64, false))},
      .defaults = {.dropout = 0, .ffn_multiplier = 3},
      .spec = &spec,
      .class_of = [](const ModelShape& shape) -> std::size_t {
        const auto experts = shape.numbers.find("experts");
        return experts == shape.numbers.end() || experts->second == 0 ? 1 : 3;
      },
      .check = &check,
      .part = "language_model.",
      .is_buffer = &is_left_out,
      .left_out =
          "Sluice trains the model's text part: its vision encoder, and what predicts "
          "several tokens at once, are left out"};
}

}  // namespace sluice::engine
