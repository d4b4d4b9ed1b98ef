// Gemma 2. Every other block has a window; scores and logits have soft caps.
#include <string>

#include "engine/families/family_table.h"
#include "engine/families/layer_keys.h"
#include "engine/families/rope_keys.h"

namespace sluice::engine {
namespace {

using Json = HuggingFaceConfig::Json;

constexpr std::string_view kFamily = "gemma2";
constexpr const char* kScoreCap = "attn_logit_softcapping";
constexpr const char* kLogitCap = "final_logit_softcapping";
constexpr const char* kWindow = "sliding_window";

DecoderSpec spec(const ShapeReader& of) {
  DecoderSpec spec = gemma_spec(of);
  spec.block.attention.soft_cap = of.number("score_cap");
  spec.logit_cap = of.number("logit_cap");
  return spec;
}

Status check(const ShapeReader& of, const DecoderSpec& spec) {
  if (of.shape().hidden % of.shape().heads != 0)
    return cannot_build("hidden " + std::to_string(of.shape().hidden) +
                        " cannot be divided among " + std::to_string(of.shape().heads) +
                        " heads, as transformers requires for gemma2: make it a multiple of that");
  if (of.count("full_interval") < 1 || of.count("window") < 1)
    return cannot_build(
        "window and full_interval must be at least 1 (full_interval 1: every block sees all)");
  if (!(spec.block.attention.query_scalar > 0))
    return cannot_build("query_scalar must be more than 0");
  return {};
}

// null: none. transformers divides by a cap of 0.
void refuse_zero_caps(ConfigReading& reading) {
  for (const char* const key : {kScoreCap, kLogitCap})
    if (reading.config.has(key) && reading.config.json()[key] == 0)
      reading.config.refuse(key, 0, "a cap above 0, or null");
}

const ConfigPart kLayers = {
    .keys = "layer_types|sliding_window",
    .read =
        [](ConfigReading& reading) {
          HuggingFaceConfig& config = reading.config;
          reading.numbers()["window"] = static_cast<double>(config.count(kWindow, 4096));
          const std::int64_t interval =
              config.full_interval(2, reading.shape().layers, kSlidingLayers);
          reading.numbers()["full_interval"] = static_cast<double>(interval);
          if (interval > 1) config.refuse_null(kWindow);
        },
    .write =
        [](const ShapeReader& of, Json& json) {
          json[kWindow] = of.count("window");
          json[kLayerTypes] =
              layer_types(of.shape().layers, of.count("full_interval"), kSlidingLayers);
        }};

ConfigRow cap_row(const char* key, std::string_view number, double of_class,
                  std::string_view meaning) {
  return {.key = key,
          .number = factor_number(number, of_class, meaning),
          .of_class = of_class,
          .null = ConfigNull::kDerived};
}

std::vector<ConfigRow> rows() {
  return {
      size_row("vocab_size", &ModelShape::vocab, 256000),
      size_row("hidden_size", &ModelShape::hidden, 2304),
      size_row("intermediate_size", &ModelShape::ffn_hidden, 9216),
      size_row("num_hidden_layers", &ModelShape::layers, 26),
      size_row("num_attention_heads", &ModelShape::heads, 8),
      kv_heads_row(4),
      {.key = "head_dim", .number = count_number("model.head_dim", 256, "width of a head")},
      only_row("hidden_activation", {"gelu_pytorch_tanh"}, ConfigUse::kReadAndWritten),
      size_row("max_position_embeddings", &ModelShape::context_tokens, 8192),
      epsilon_row(1e-6),
      tied_row(true),
      attention_bias_row(),
      {.key = "attention_dropout", .dropout = &ModelShape::dropout, .null = ConfigNull::kMissing},
      query_scalar_row(256),
      cap_row(kScoreCap, "model.score_cap", 50,
              "soft cap of attention scores, cap * tanh(score / cap) (attn_logit_softcapping); 0: "
              "none"),
      cap_row(kLogitCap, "model.logit_cap", 30,
              "the same of the logits (final_logit_softcapping); 0: none"),
      part_row(kLayers),
      part_row(kRopeParametersPart),
      {.key = kWindow,
       .number = count_number("model.window", 4096,
                              "sliding window in tokens: the keys that a query sees, including "
                              "its own (sliding_window)"),
       .use = ConfigUse::kOfPart},
      {.number = count_number("model.full_interval", 2,
                              "so many consecutive blocks end with one that sees the whole text; "
                              "the others have the window (layer_types)")},
      {.key = "rope_theta",
       .number = factor_number("model.rope_theta", 10000, "base of the rotary frequencies"),
       .use = ConfigUse::kOfPart},
      only_row("use_bidirectional_attention", {false, Json()}),
      only_row("is_causal", {true})};
}

NamedShape model(std::string_view name, const PresetSizes& sizes, double query_scalar) {
  return preset(kFamily, name, sizes, {{"query_scalar", query_scalar}});
}

}  // namespace

FamilyTable gemma2_table() {
  return {.name = kFamily,
          .classes = {{.model_type = "gemma2",
                       .architecture = "Gemma2ForCausalLM",
                       .models = "Gemma 2s",
                       .names = &kGemmaNames,
                       .begin = 2,
                       .end = 1,
                       .padding = 0}},
          .rows = rows(),
          // The config.json files on the Hugging Face Hub.
          .presets = {model("gemma2-2b", {26, 2304, 8, 4, 256, 9216, 256000, 8192}, 256),
                      model("gemma2-9b", {42, 3584, 16, 8, 256, 14336, 256000, 8192}, 256),
                      model("gemma2-27b", {46, 4608, 32, 16, 128, 36864, 256000, 8192}, 144)},
          .defaults = {.dropout = 0, .ffn_multiplier = 4},
          .spec = &spec,
          .check = &check,
          .finish = &refuse_zero_caps};
}

}  // namespace sluice::engine
