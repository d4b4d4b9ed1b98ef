#include "engine/model/llama/llama_config.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <utility>
#include <vector>

#include "aio/bounded_json.h"
#include "engine/model/hugging_face_config.h"
#include "engine/model/llama/llama_shape.h"
#include "engine/weights/special_tokens_json.h"

namespace sluice::engine {
namespace {

using Json = HuggingFaceConfig::Json;
using Architecture = LlamaArchitecture;

constexpr double kMost = 1e9;
constexpr std::int64_t kDefaultMaxWindowLayers = 28;
constexpr std::int64_t kDefaultWindow = 4096;
constexpr const char* kFull = "full_attention";
constexpr const char* kSliding = "sliding_attention";

// How transformers' classes differ: names, and the defaults of missing keys.
struct Class {
  const char* model_type;
  const char* name;    // before "ForCausalLM"
  const char* models;  // in messages
  Architecture architecture;
  std::int64_t vocab;
  std::int64_t ffn;
  std::int64_t kv_heads;  // 0: as many as heads
  std::int64_t head_dim;  // 0: hidden / heads
  std::int64_t context;
  bool has_begin_and_end;  // tokens 1 and 2
};
constexpr std::array<Class, 5> kClasses = {{
    {"llama", "Llama", "Llamas", Architecture::kLlama, 32000, 11008, 0, 0, 2048, true},
    {"mistral", "Mistral", "Mistrals", Architecture::kMistral, 32000, 14336, 8, 0, 131072, true},
    {"qwen2", "Qwen2", "Qwen2s", Architecture::kQwen2, 151936, 22016, 32, 0, 32768, false},
    {"qwen3", "Qwen3", "Qwen3s", Architecture::kQwen3, 151936, 22016, 32, 128, 32768, false},
    {"ministral", "Ministral", "Ministrals", Architecture::kMinistral, 32000, 14336, 8, 0, 131072,
     true},
}};
constexpr std::int64_t kDefaultHidden = 4096;
constexpr std::int64_t kDefaultLayers = 32;
constexpr std::int64_t kDefaultHeads = 32;

const Class& class_of(Architecture architecture) {
  return *std::find_if(kClasses.begin(), kClasses.end(),
                       [&](const Class& one) { return one.architecture == architecture; });
}

bool is_qwen(Architecture architecture) {
  return architecture == Architecture::kQwen2 || architecture == Architecture::kQwen3;
}

using Numbers = std::map<std::string, double>;

// ---- rotary positions --------------------------------------------------------------------------

constexpr const char* kRopeParameters = "rope_parameters";
constexpr const char* kRopeScaling = "rope_scaling";

// The object with the rotary positions, for all layers: transformers 5's, or the one of earlier
// versions, which transformers prefers if both exist.
Json rope_object(HuggingFaceConfig& config) {
  // An empty object counts as missing, as in Python.
  const bool has_older = config.has(kRopeScaling) && config.json()[kRopeScaling] != Json::object();
  const char* const key = has_older ? kRopeScaling : kRopeParameters;
  if (!config.has(key)) return Json::object();
  const Json& value = config.json()[key];
  if (!value.is_object()) {
    config.fail(Error(ErrorCode::kCorrupt, "\"" + std::string(key) + "\" is " + value.dump() +
                                               ", which is not an object"));
    return Json::object();
  }
  const bool has_layers = config.json().contains("layer_types");
  Json one;
  for (const char* const layers : {kFull, kSliding}) {
    const auto of_layers = value.find(layers);
    if (of_layers == value.end() || of_layers->is_null()) continue;
    if (!has_layers) config.refuse(key, value, "one object for all layers, or layer_types");
    if (!one.is_null() && one != *of_layers)
      config.refuse(std::string(key), value, "the same rotary positions in all layers");
    one = *of_layers;
  }
  if (one.is_null()) return value;
  return one.is_object() ? one : Json::object();
}

struct RopeKey {
  const char* in_file;
  const char* number;
};
// The keys that each scaling reads, besides the type and the base.
std::vector<RopeKey> keys_of(RopeScaling scaling) {
  constexpr RopeKey kFactor = {"factor", "rope_factor"};
  constexpr RopeKey kOriginal = {"original_max_position_embeddings", "rope_original_context"};
  switch (scaling) {
    case RopeScaling::kNone:
      return {};
    case RopeScaling::kLinear:
    case RopeScaling::kDynamic:
      return {kFactor};
    case RopeScaling::kYarn:
      return {kFactor,
              kOriginal,
              {"attention_factor", "rope_attention_factor"},
              {"mscale", "rope_mscale"},
              {"mscale_all_dim", "rope_mscale_all_dim"},
              {"beta_fast", "rope_beta_fast"},
              {"beta_slow", "rope_beta_slow"}};
    case RopeScaling::kLlama3:
      return {kFactor,
              kOriginal,
              {"low_freq_factor", "rope_low_freq_factor"},
              {"high_freq_factor", "rope_high_freq_factor"}};
  }
  return {};
}

constexpr std::array<const char*, 5> kScalingNames = {"default", "linear", "dynamic", "yarn",
                                                      "llama3"};

RopeScaling scaling_of(HuggingFaceConfig& config, const Json& rope) {
  const Json type = rope.value("rope_type", rope.value("type", Json("default")));
  for (std::size_t i = 0; i < kScalingNames.size(); ++i)
    if (type == kScalingNames.at(i)) return static_cast<RopeScaling>(i);
  config.refuse("rope_type", type, "\"default\", \"linear\", \"dynamic\", \"yarn\" or \"llama3\"");
  return RopeScaling::kNone;
}

// transformers ignores a key that the scaling does not read, unless it belongs to another kind of
// positions.
void refuse_other_positions(HuggingFaceConfig& config, const Json& rope) {
  for (const char* const key : {"mrope_section", "long_factor", "short_factor"})
    if (rope.contains(key)) config.refuse(key, rope[key], "one angle per position");
  for (const Json* const place : {&rope, &config.json()}) {
    const Json share = place->value("partial_rotary_factor", Json());
    if (!share.is_null() && share != 1)
      config.refuse("partial_rotary_factor", share, "whole heads rotated (1.0)");
  }
}

double rope_theta(HuggingFaceConfig& config, const Json& rope) {
  constexpr double kDefaultTheta = 10000;
  HuggingFaceConfig own(rope, "");
  const double theta = own.has("rope_theta")
                           ? own.number("rope_theta", kDefaultTheta, 1, kMost * kMost)
                           : config.number("rope_theta", kDefaultTheta, 1, kMost * kMost);
  if (!own.status().ok()) config.fail(own.status().error());
  return theta;
}

// Checks the keys that transformers requires.
void check_scaling_keys(HuggingFaceConfig& rope, RopeScaling scaling) {
  std::vector<const char*> needed;
  if (scaling != RopeScaling::kNone) needed.push_back("factor");
  if (scaling == RopeScaling::kLlama3) {
    needed.push_back("low_freq_factor");
    needed.push_back("high_freq_factor");
  }
  for (const char* const key : needed) {
    const bool may_be_null = scaling == RopeScaling::kYarn;
    if (rope.has(key) || (may_be_null && rope.json().contains(key))) continue;
    rope.fail(Error(ErrorCode::kCorrupt,
                    "the scaling of rotary positions has no \"" + std::string(key) + "\""));
  }
}

void parse_rope(HuggingFaceConfig& config, std::int64_t context, Numbers& numbers) {
  const Json rope = rope_object(config);
  const RopeScaling scaling = scaling_of(config, rope);
  refuse_other_positions(config, rope);
  numbers["rope_theta"] = rope_theta(config, rope);
  numbers["rope_scaling"] = static_cast<double>(scaling);
  numbers["rope_original_context"] = static_cast<double>(context);
  HuggingFaceConfig own(rope, "");
  for (const RopeKey& key : keys_of(scaling))
    if (own.has(key.in_file)) numbers[key.number] = own.number(key.in_file, 0, 0, kMost);
  if (scaling == RopeScaling::kLlama3 || scaling == RopeScaling::kYarn) {
    // A key outside the object takes precedence over the one inside.
    const std::int64_t original = config.count("original_max_position_embeddings", 0);
    if (original != 0) numbers["rope_original_context"] = static_cast<double>(original);
  }
  if (scaling == RopeScaling::kYarn) {
    // null means false there, not missing.
    const bool is_null = rope.contains("truncate") && rope["truncate"].is_null();
    numbers["rope_truncate"] = !is_null && own.flag("truncate", true) ? 1 : 0;
    if (own.has("attention_factor") && rope["attention_factor"] == 0)
      config.refuse("attention_factor", rope["attention_factor"], "a factor above 0");
    for (const auto& [number, default_value] :
         {std::pair{"rope_beta_fast", 32.0}, std::pair{"rope_beta_slow", 1.0}})
      if (numbers.contains(number) && numbers[number] == 0) numbers[number] = default_value;
  }
  check_scaling_keys(own, scaling);
  // null stands for the ratio of the contexts.
  if (scaling == RopeScaling::kYarn && !own.has("factor"))
    numbers["rope_factor"] = static_cast<double>(context) / numbers["rope_original_context"];
  if (!own.status().ok()) config.fail(own.status().error());
}

Json rope_text(const LlamaShape& shape, const Numbers& numbers) {
  const Rope& rope = shape.rope;
  Json json = {{"rope_type", kScalingNames.at(static_cast<std::size_t>(rope.scaling))},
               {"rope_theta", rope.theta}};
  for (const RopeKey& key : keys_of(rope.scaling)) {
    const double value = numbers.at(key.number);
    const bool is_unset = value == 0;  // yarn's factors: derived from the others
    if (is_unset) continue;
    if (std::string_view(key.number) == "rope_original_context")
      json[key.in_file] = static_cast<std::int64_t>(value);
    else
      json[key.in_file] = value;
  }
  if (rope.scaling == RopeScaling::kYarn) json["truncate"] = rope.truncate;
  return json;
}

// ---- windows -----------------------------------------------------------------------------------

// The order of layers with a window as numbers: some without one first, then a fixed number with
// and a fixed number without in turn.
void parse_layer_types(HuggingFaceConfig& config, const Json& types, LayerWindow& window) {
  std::vector<bool> sliding;
  for (const Json& type : types) {
    if (type != kFull && type != kSliding)
      return config.refuse("layer_types", type, "\"full_attention\" and \"sliding_attention\"");
    sliding.push_back(type == kSliding);
  }
  const auto first = std::find(sliding.begin(), sliding.end(), true);
  if (first == sliding.end()) {
    window.tokens = 0;
    return;
  }
  const auto full = std::find(first, sliding.end(), false);
  const auto again = std::find(full, sliding.end(), true);
  window.first = first - sliding.begin();
  window.windowed = full == sliding.end() ? 0 : full - first;
  window.full = again - full;
  for (std::size_t layer = 0; layer < sliding.size(); ++layer)
    if (window.has(static_cast<std::int64_t>(layer)) != sliding[layer])
      return config.refuse("layer_types", types,
                           "one repeating order of layers after the first ones");
}

LayerWindow parse_window(HuggingFaceConfig& config, Architecture architecture,
                         std::int64_t layers) {
  LayerWindow window;
  if (architecture == Architecture::kLlama) return window;
  const bool uses = !is_qwen(architecture) || config.flag("use_sliding_window", false);
  const bool said = config.json().contains("sliding_window");
  const std::int64_t tokens = config.count("sliding_window", said ? 0 : kDefaultWindow);
  window.tokens = uses ? tokens : 0;
  if (is_qwen(architecture))
    window.first = std::min(config.count("max_window_layers", kDefaultMaxWindowLayers, 0), layers);
  if (architecture == Architecture::kMistral || !config.has("layer_types")) {
    if (window.first >= layers) window.tokens = 0;
    return window;
  }
  const Json& types = config.json()["layer_types"];
  if (!types.is_array() || static_cast<std::int64_t>(types.size()) != layers) {
    config.fail(Error(ErrorCode::kCorrupt, "\"layer_types\" is " + types.dump() +
                                               ", which is not one of each of " +
                                               std::to_string(layers) + " layers"));
    return window;
  }
  const bool any = std::find(types.begin(), types.end(), Json(kSliding)) != types.end();
  if (any && window.tokens == 0) {
    config.fail(Error(ErrorCode::kInvalidArgument,
                      "\"layer_types\" names \"sliding_attention\", but the file sets no window "
                      "(\"sliding_window\", and for Qwen \"use_sliding_window\")"));
    return window;
  }
  parse_layer_types(config, types, window);
  return window;
}

void write_window(const LlamaShape& shape, std::int64_t context_tokens, Json& json) {
  if (shape.architecture == Architecture::kLlama) return;
  const LayerWindow& window = shape.window;
  json["sliding_window"] = window.tokens == 0 ? Json() : Json(window.tokens);
  // transformers' Ministral builds a window mask even if no layer uses one.
  if (shape.architecture == Architecture::kMinistral && window.tokens == 0)
    json["sliding_window"] = context_tokens;
  if (shape.architecture == Architecture::kMistral) return;
  if (is_qwen(shape.architecture)) {
    json["use_sliding_window"] = window.tokens != 0;
    json["max_window_layers"] = window.tokens == 0 ? shape.layers : window.first;
  }
  Json types = Json::array();
  for (std::int64_t layer = 0; layer < shape.layers; ++layer)
    types.push_back(window.has(layer) ? kSliding : kFull);
  json["layer_types"] = std::move(types);
}

// ---- the file ----------------------------------------------------------------------------------

Result<SpecialTokens> special_tokens(const Json& config, const Class& of, std::int64_t vocab) {
  constexpr std::int64_t kBegin = 1;
  constexpr std::int64_t kEnd = 2;
  SLUICE_ASSIGN_OR_RETURN(SpecialTokens tokens, parse_special_tokens(config.dump()));
  if (of.has_begin_and_end && !config.contains("bos_token_id")) tokens.begin = kBegin;
  if (of.has_begin_and_end && !config.contains("eos_token_id")) tokens.ends = {kEnd};
  return tokens.within(vocab);
}

// The first Llamas' files have "LLaMAForCausalLM".
bool same_but_for_case(const Json& one, const std::string& name) {
  if (!one.is_string()) return false;
  const auto& text = one.get_ref<const std::string&>();
  return std::equal(text.begin(), text.end(), name.begin(), name.end(), [](char a, char b) {
    return std::tolower(static_cast<unsigned char>(a)) ==
           std::tolower(static_cast<unsigned char>(b));
  });
}

void check_class(HuggingFaceConfig& config, const Class& of) {
  const std::string wanted = std::string(of.name) + "ForCausalLM";
  if (config.has("architectures")) {
    const Json& all = config.json()["architectures"];
    const std::string base = std::string(of.name) + "Model";
    const bool known =
        all.is_array() && (all.empty() || std::any_of(all.begin(), all.end(), [&](const Json& one) {
                             return same_but_for_case(one, wanted) || same_but_for_case(one, base);
                           }));
    if (!known) config.refuse("architectures", all, "[\"" + wanted + "\"]");
  }
  if (config.has("quantization_config"))
    config.refuse("quantization_config", config.json()["quantization_config"],
                  "weights of 16 bits or more (none)");
  config.expect("hidden_act", {"silu", "swish"});
  config.expect("is_causal", {true});
}

// transformers (AutoConfig, since 5.0) makes a Ministral of a Mistral that names the layers with a
// window, because its Mistral has the same window in all layers.
const Class& computed_class(const Json& json, const Class& said) {
  const bool by_layer = said.architecture == Architecture::kMistral && json.contains("layer_types");
  return by_layer ? class_of(Architecture::kMinistral) : said;
}

HuggingFaceModel parse(HuggingFaceConfig& config, const Class& of) {
  HuggingFaceModel model;
  ModelShape& shape = model.shape;
  shape.family = kLlamaFamily;
  shape.layers = config.count("num_hidden_layers", kDefaultLayers);
  shape.hidden = config.count("hidden_size", kDefaultHidden);
  shape.heads = config.count("num_attention_heads", kDefaultHeads);
  shape.context_tokens = config.count("max_position_embeddings", of.context);
  shape.vocab = config.count("vocab_size", of.vocab);
  shape.ffn_hidden = config.count("intermediate_size", of.ffn);
  constexpr double kMostDropout = 0.999;
  shape.dropout = config.number("attention_dropout", 0, 0, kMostDropout);

  Numbers& numbers = shape.numbers;
  numbers["architecture"] = static_cast<double>(of.architecture);
  // null counts as missing, except that the class takes it as the number of heads.
  const bool is_null = config.json().contains("num_key_value_heads") &&
                       config.json()["num_key_value_heads"].is_null();
  const std::int64_t kv_heads =
      config.count("num_key_value_heads", of.kv_heads == 0 || is_null ? shape.heads : of.kv_heads);
  numbers["kv_heads"] = static_cast<double>(kv_heads);
  const std::int64_t head_dim =
      config.count("head_dim", of.head_dim == 0 ? shape.hidden / shape.heads : of.head_dim);
  numbers["head_dim"] = static_cast<double>(head_dim);
  constexpr double kEpsilon = 1e-6;
  constexpr double kLargestEpsilon = 1000;
  numbers["norm_epsilon"] = config.number("rms_norm_eps", kEpsilon, 0, kLargestEpsilon);
  numbers["tied_head"] = config.flag("tie_word_embeddings", false) ? 1 : 0;
  const bool may_have_bias =
      of.architecture == Architecture::kLlama || of.architecture == Architecture::kQwen3;
  numbers["attention_bias"] = may_have_bias && config.flag("attention_bias", false) ? 1 : 0;
  numbers["mlp_bias"] =
      of.architecture == Architecture::kLlama && config.flag("mlp_bias", false) ? 1 : 0;
  const LayerWindow window = parse_window(config, of.architecture, shape.layers);
  numbers["window"] = static_cast<double>(window.tokens);
  numbers["window_first_layer"] = window.tokens == 0 ? 0 : static_cast<double>(window.first);
  numbers["window_layers"] = window.tokens == 0 ? 0 : static_cast<double>(window.windowed);
  numbers["window_full_layers"] = window.tokens == 0 ? 0 : static_cast<double>(window.full);
  parse_rope(config, shape.context_tokens, numbers);
  return model;
}

}  // namespace

std::string llama_config_text(const HuggingFaceModel& model) {
  const ModelShape& of = model.shape;
  const LlamaShape shape = llama_shape(of);
  const Class& its = class_of(shape.architecture);
  const Json rope = rope_text(shape, of.numbers);
  // Dynamic scaling begins past max_position_embeddings; otherwise the key only records the
  // context.
  const bool grows = shape.rope.scaling == RopeScaling::kDynamic;
  const std::int64_t max_positions = grows ? shape.rope.original_context : of.context_tokens;
  Json json = {{"architectures", {std::string(its.name) + "ForCausalLM"}},
               {"model_type", its.model_type},
               {"vocab_size", of.vocab},
               {"hidden_size", of.hidden},
               {"intermediate_size", of.ffn()},
               {"num_hidden_layers", of.layers},
               {"num_attention_heads", of.heads},
               {"num_key_value_heads", shape.kv_heads},
               {"head_dim", shape.head_dim},
               {"hidden_act", "silu"},
               {"max_position_embeddings", max_positions},
               {"rms_norm_eps", shape.epsilon},
               {"tie_word_embeddings", shape.tied},
               {"attention_dropout", shape.attention_dropout},
               {"rope_theta", shape.rope.theta},
               {"rope_scaling", shape.rope.scaling == RopeScaling::kNone ? Json() : rope},
               {"rope_parameters", rope}};
  if (shape.architecture == Architecture::kLlama || shape.architecture == Architecture::kQwen3)
    json["attention_bias"] = shape.output_bias;
  if (shape.architecture == Architecture::kLlama) json["mlp_bias"] = shape.mlp_bias;
  write_window(shape, of.context_tokens, json);
  json["bos_token_id"] = to_json(model.special.begin);
  json["eos_token_id"] = to_json(model.special.ends);
  json["pad_token_id"] = to_json(model.special.padding);
  json["dtype"] = hugging_face_dtype(model.dtype);
  json["torch_dtype"] = hugging_face_dtype(model.dtype);
  return json.dump(2) + "\n";
}

Result<HuggingFaceModel> parse_llama_config(std::string_view text) {
  SLUICE_ASSIGN_OR_RETURN(const Json json, read_json_object<Json>(text));
  const Json type = json.value("model_type", Json());
  for (const Class& of : kClasses) {
    if (type != of.model_type) continue;
    HuggingFaceConfig config(json, of.models);
    check_class(config, of);
    HuggingFaceModel model = parse(config, computed_class(json, of));
    SLUICE_RETURN_IF_ERROR(config.status());
    SLUICE_ASSIGN_OR_RETURN(model.special, special_tokens(json, of, model.shape.vocab));
    return model;
  }
  return Error(ErrorCode::kInvalidArgument,
               "\"model_type\" is " + type.dump() + ", which is not a Llama model");
}

}  // namespace sluice::engine
