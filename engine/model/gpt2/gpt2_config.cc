#include "engine/model/gpt2/gpt2_config.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "aio/bounded_json.h"
#include "engine/model/gpt2/gpt2_shape.h"
#include "engine/model/hugging_face_config.h"
#include "engine/weights/special_tokens_json.h"

namespace sluice::engine {
namespace {

using Json = HuggingFaceConfig::Json;

// GPT-2's end-of-text token, which transformers assumes if a file does not name one.
constexpr std::int64_t kGpt2EndOfText = 50256;

struct ActivationName {
  const char* name;
  Activation activation;
};
// transformers has several names for functions that differ only in rounding. The first of each is
// written.
constexpr std::array<ActivationName, 10> kActivationNames = {{
    {"gelu_new", Activation::kGeluTanh},
    {"gelu_pytorch_tanh", Activation::kGeluTanh},
    {"gelu_python_tanh", Activation::kGeluTanh},
    {"gelu_fast", Activation::kGeluTanh},
    {"gelu_accurate", Activation::kGeluTanh},
    {"gelu", Activation::kGelu},
    {"gelu_python", Activation::kGelu},
    {"relu", Activation::kRelu},
    {"silu", Activation::kSilu},
    {"swish", Activation::kSilu},
}};

const char* name_of(Activation activation) {
  return std::find_if(kActivationNames.begin(), kActivationNames.end(),
                      [&](const ActivationName& one) { return one.activation == activation; })
      ->name;
}

Activation activation_in(HuggingFaceConfig& config) {
  constexpr const char* kKey = "activation_function";
  const Json value = config.json().value(kKey, Json(kActivationNames.front().name));
  for (const ActivationName& one : kActivationNames)
    if (value == one.name) return one.activation;
  config.refuse(kKey, value, R"("gelu_new", "gelu", "relu" or "silu")");
  return Activation::kGeluTanh;
}

// Like transformers, which has no default for null in place of a value.
void refuse_null(HuggingFaceConfig& config, const char* key, const std::string& wanted) {
  if (config.json().contains(key) && !config.has(key)) config.refuse(key, Json(), wanted);
}

bool flag(HuggingFaceConfig& config, const char* key, bool default_value) {
  refuse_null(config, key, "true or false");
  return config.flag(key, default_value);
}

// Under GPT-2's name, or under the one common to transformers' models.
std::int64_t count(HuggingFaceConfig& config, const char* key, const char* common_key,
                   std::int64_t default_value) {
  const std::int64_t value = config.count(key, default_value);
  const std::int64_t common = config.count(common_key, default_value);
  if (!config.has(common_key)) return value;
  if (config.has(key) && value != common)
    config.fail(Error(ErrorCode::kCorrupt, "\"" + std::string(key) + "\" is " +
                                               std::to_string(value) + ", and \"" + common_key +
                                               "\" " + std::to_string(common)));
  return common;
}

double probability(HuggingFaceConfig& config, const char* key, double default_value) {
  const Json value = config.json().value(key, Json(default_value));
  if (value.is_number() && value >= 0 && value < 1) return value.get<double>();
  config.fail(Error(ErrorCode::kCorrupt, "\"" + std::string(key) + "\" is " + value.dump() +
                                             ", which is not a dropout probability"));
  return default_value;
}

// Ignores tokens outside the vocabulary: small models keep GPT-2's default, but have no such token.
Result<SpecialTokens> special_tokens(const Json& config, std::int64_t vocab) {
  SLUICE_ASSIGN_OR_RETURN(SpecialTokens tokens, parse_special_tokens(config.dump()));
  if (!config.contains("bos_token_id")) tokens.begin = kGpt2EndOfText;
  if (!config.contains("eos_token_id")) tokens.ends = {kGpt2EndOfText};
  return tokens.within(vocab);
}

void check_class(HuggingFaceConfig& config) {
  if (config.json().value("model_type", Json()) != "gpt2")
    config.refuse("model_type", config.json().value("model_type", Json()), "\"gpt2\"");
  if (config.has("quantization_config"))
    config.refuse("quantization_config", config.json()["quantization_config"],
                  "weights of 16 bits or more (none)");
  config.expect("add_cross_attention", {false});
  // Whether attention is computed in fp32. It always is here, so both values are equal up to
  // rounding.
  flag(config, "reorder_and_upcast_attn", false);
}

Gpt2Variant variant_in(HuggingFaceConfig& config) {
  const Gpt2Variant usual;
  Gpt2Variant variant;
  variant.activation = activation_in(config);
  refuse_null(config, "layer_norm_epsilon", "a number");
  variant.epsilon =
      config.number("layer_norm_epsilon", usual.epsilon, kGpt2SmallestEpsilon, kGpt2MostEpsilon);
  variant.tied = flag(config, "tie_word_embeddings", usual.tied);
  variant.scales_attention = flag(config, "scale_attn_weights", usual.scales_attention);
  variant.scales_by_layer = flag(config, "scale_attn_by_inverse_layer_idx", usual.scales_by_layer);
  return variant;
}

constexpr const char* kDifferentDropouts =
    "its dropouts differ (resid_pdrop, embd_pdrop, attn_pdrop): resid_pdrop is used for all three "
    "(model.dropout)";

// Missing keys have the defaults of transformers' class.
HuggingFaceModel parse(HuggingFaceConfig& config) {
  constexpr std::int64_t kLayers = 12;
  constexpr std::int64_t kHidden = 768;
  constexpr std::int64_t kHeads = 12;
  constexpr std::int64_t kContext = 1024;
  constexpr std::int64_t kVocab = 50257;
  constexpr double kDropout = 0.1;
  check_class(config);
  HuggingFaceModel model;
  ModelShape& shape = model.shape;
  shape.layers = count(config, "n_layer", "num_hidden_layers", kLayers);
  shape.hidden = count(config, "n_embd", "hidden_size", kHidden);
  shape.heads = count(config, "n_head", "num_attention_heads", kHeads);
  shape.context_tokens = count(config, "n_positions", "max_position_embeddings", kContext);
  shape.vocab = config.count("vocab_size", kVocab);
  shape.ffn_hidden = config.count("n_inner", 4 * shape.hidden);
  shape.numbers = numbers_of(variant_in(config));
  shape.dropout = probability(config, "resid_pdrop", kDropout);
  const double embedding_dropout = probability(config, "embd_pdrop", kDropout);
  const double attention_dropout = probability(config, "attn_pdrop", kDropout);
  if (shape.dropout != embedding_dropout || shape.dropout != attention_dropout)
    model.notes.emplace_back(kDifferentDropouts);
  return model;
}

}  // namespace

std::string gpt2_config_text(const HuggingFaceModel& model) {
  const ModelShape& shape = model.shape;
  const Gpt2Variant variant = gpt2_variant(shape);
  const Json inner = shape.ffn() == 4 * shape.hidden ? Json() : Json(shape.ffn());
  Json json = {{"architectures", {"GPT2LMHeadModel"}},
               {"model_type", "gpt2"},
               {"n_layer", shape.layers},
               {"n_embd", shape.hidden},
               {"n_head", shape.heads},
               {"n_positions", shape.context_tokens},
               {"n_ctx", shape.context_tokens},  // llama.cpp's converter reads this one
               {"n_inner", inner},
               {"vocab_size", shape.vocab},
               {"activation_function", name_of(variant.activation)},
               {"layer_norm_epsilon", variant.epsilon},
               {"resid_pdrop", shape.dropout},
               {"embd_pdrop", shape.dropout},
               {"attn_pdrop", shape.dropout},
               {"tie_word_embeddings", variant.tied},
               {"bos_token_id", to_json(model.special.begin)},
               {"eos_token_id", to_json(model.special.ends)},
               {"pad_token_id", to_json(model.special.padding)},
               {"dtype", hugging_face_dtype(model.dtype)},
               {"torch_dtype", hugging_face_dtype(model.dtype)}};
  if (!variant.scales_attention) json["scale_attn_weights"] = false;
  if (variant.scales_by_layer) json["scale_attn_by_inverse_layer_idx"] = true;
  return json.dump(2) + "\n";
}

Result<HuggingFaceModel> parse_gpt2_config(std::string_view text) {
  SLUICE_ASSIGN_OR_RETURN(const Json json, read_json_object<Json>(text));
  HuggingFaceConfig config(json, "GPT-2s");
  HuggingFaceModel model = parse(config);
  SLUICE_RETURN_IF_ERROR(config.status());
  SLUICE_ASSIGN_OR_RETURN(model.special, special_tokens(json, model.shape.vocab));
  return model;
}

}  // namespace sluice::engine
