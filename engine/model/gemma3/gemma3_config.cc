#include "engine/model/gemma3/gemma3_config.h"

#include <utility>
#include <vector>

#include "aio/bounded_json.h"
#include "engine/model/gemma3/gemma3_shape.h"
#include "engine/model/hugging_face_config.h"
#include "engine/weights/special_tokens_json.h"

namespace sluice::engine {
namespace {

using Json = HuggingFaceConfig::Json;

constexpr const char* kTextType = "gemma3_text";
constexpr const char* kModels = "Gemma 3s";
constexpr const char* kFull = "full_attention";
constexpr const char* kSliding = "sliding_attention";
constexpr const char* kRope = "rope_parameters";
constexpr const char* kOldRope = "rope_scaling";
constexpr const char* kTied = "tie_word_embeddings";

constexpr const char* kTextAlone =
    "Sluice trains the model's text part: its vision encoder is left out";

// The object under `key`, or an empty one.
Json object_of(HuggingFaceConfig& config, const Json& json, const char* key) {
  const auto found = json.find(key);
  if (found == json.end() || found->is_null()) return Json::object();
  if (found->is_object()) return *found;
  config.fail(Error(ErrorCode::kCorrupt, "\"" + std::string(key) + "\" is " + found->dump() +
                                             ", which is not an object"));
  return Json::object();
}

// The frequencies of one kind of layers. Returns the factor of a linear scaling.
double parse_rope(HuggingFaceConfig& config, const Json& rope, bool may_scale, double& theta) {
  constexpr double kMost = 1e18;
  constexpr double kMostFactor = 1e9;
  // transformers 5 leaves an earlier "type" unread.
  const Json type = rope.value("rope_type", Json("default"));
  const Json earlier = rope.value("type", type);
  if (earlier != type) config.refuse("type", earlier, "\"rope_type\" alone");
  const bool is_linear = may_scale && type == "linear";
  if (type != "default" && !is_linear)
    config.refuse("rope_type", type, may_scale ? "\"default\" or \"linear\"" : "\"default\"");
  HuggingFaceConfig own(rope, kModels);
  theta = own.number("rope_theta", theta, 1, kMost);
  if (own.number("partial_rotary_factor", 1, 0, 1) != 1)
    own.refuse("partial_rotary_factor", rope["partial_rotary_factor"], "1");
  if (is_linear && !own.has("factor"))
    own.fail(Error(ErrorCode::kCorrupt, "a linear scaling of positions needs \"factor\""));
  const double factor = is_linear ? own.number("factor", 1, 1, kMostFactor) : 1;
  if (!own.status().ok()) config.fail(own.status().error());
  return factor;
}

// transformers 5 has "rope_parameters" for each kind of layers; earlier ones have three keys.
void parse_ropes(HuggingFaceConfig& config, std::map<std::string, double>& numbers) {
  constexpr double kMost = 1e18;
  const Json both = object_of(config, config.json(), kRope);
  for (const auto& [key, value] : both.items())
    if (key != kFull && key != kSliding) config.refuse(kRope, both, "one object by kind of layer");
  Json full = object_of(config, both, kFull);
  const Json old = object_of(config, config.json(), kOldRope);
  full.update(old);
  double& theta = numbers["rope_theta"] = config.number("rope_theta", 1e6, 1, kMost);
  double& local = numbers["window_rope_theta"] =
      config.number("rope_local_base_freq", 10000, 1, kMost);
  numbers["rope_factor"] = parse_rope(config, full, true, theta);
  parse_rope(config, object_of(config, both, kSliding), false, local);
}

HuggingFaceModel parse(HuggingFaceConfig& config) {
  HuggingFaceModel model;
  ModelShape& shape = model.shape;
  shape.family = kGemma3Family;
  shape.layers = config.count("num_hidden_layers", 26);
  shape.hidden = config.count("hidden_size", 2304);
  shape.heads = config.count("num_attention_heads", 8);
  shape.context_tokens = config.count("max_position_embeddings", 131072);
  shape.vocab = config.count("vocab_size", 262208);
  shape.ffn_hidden = config.count("intermediate_size", 9216);
  constexpr double kMostDropout = 0.999;
  constexpr double kLargestEpsilon = 1000;
  shape.dropout = config.number("attention_dropout", 0, 0, kMostDropout);
  auto& numbers = shape.numbers;
  numbers["kv_heads"] = static_cast<double>(config.count("num_key_value_heads", 4));
  numbers["head_dim"] = static_cast<double>(config.count("head_dim", 256));
  numbers["norm_epsilon"] = config.number("rms_norm_eps", 1e-6, 0, kLargestEpsilon);
  numbers["tied_head"] = config.flag(kTied, true) ? 1 : 0;
  numbers["attention_bias"] = config.flag("attention_bias", false) ? 1 : 0;
  numbers["query_scalar"] = static_cast<double>(config.count("query_pre_attn_scalar", 256));
  numbers["window"] = static_cast<double>(config.count("sliding_window", 4096));
  const std::int64_t interval =
      config.full_interval(config.count("sliding_window_pattern", 6), shape.layers, kSliding);
  numbers["full_interval"] = static_cast<double>(interval);
  if (interval > 1 && config.json().contains("sliding_window"))
    if (!config.has("sliding_window")) config.refuse("sliding_window", Json(), "a window");
  parse_ropes(config, numbers);
  config.expect("hidden_activation", {"gelu_pytorch_tanh"});
  config.expect("final_logit_softcapping", {Json()});
  config.expect("attn_logit_softcapping", {Json()});
  config.expect("use_bidirectional_attention", {false, Json()});
  config.expect("is_causal", {true});
  config.expect("partial_rotary_factor", {1.0});
  return model;
}

Json rope_json(const Rope& rope) {
  Json json = {{"rope_type", rope.scaling == RopeScaling::kLinear ? "linear" : "default"},
               {"rope_theta", rope.theta}};
  if (rope.scaling == RopeScaling::kLinear) json["factor"] = rope.factor;
  return json;
}

}  // namespace

std::string gemma3_config_text(const HuggingFaceModel& model) {
  const ModelShape& shape = model.shape;
  const DecoderSpec spec = gemma3_spec(shape);
  const AttentionSpec& attention = spec.block.attention;
  Json json = {{"architectures", {"Gemma3ForCausalLM"}},
               {"model_type", kTextType},
               {"vocab_size", shape.vocab},
               {"hidden_size", shape.hidden},
               {"intermediate_size", shape.ffn()},
               {"num_hidden_layers", shape.layers},
               {"num_attention_heads", shape.heads},
               {"num_key_value_heads", attention.kv_heads},
               {"head_dim", attention.head_dim},
               {"hidden_activation", "gelu_pytorch_tanh"},
               {"max_position_embeddings", shape.context_tokens},
               {"rms_norm_eps", spec.block.epsilon},
               {kTied, spec.tied},
               {"attention_bias", attention.qkv_bias},
               {"attention_dropout", attention.dropout}};
  json["query_pre_attn_scalar"] = static_cast<std::int64_t>(attention.query_scalar);
  json["sliding_window"] = static_cast<std::int64_t>(shape.numbers.at("window"));
  const auto interval = static_cast<std::int64_t>(shape.numbers.at("full_interval"));
  Json types = Json::array();
  for (std::int64_t layer = 0; layer < shape.layers; ++layer)
    types.push_back(sees_all(layer, interval) ? kFull : kSliding);
  json["layer_types"] = std::move(types);
  json[kRope] = {{kFull, rope_json(attention.rope)}, {kSliding, rope_json(spec.window_rope)}};
  json["bos_token_id"] = to_json(model.special.begin);
  json["eos_token_id"] = to_json(model.special.ends);
  json["pad_token_id"] = to_json(model.special.padding);
  json["dtype"] = hugging_face_dtype(model.dtype);
  return json.dump(2) + "\n";
}

Result<HuggingFaceModel> parse_gemma3_config(std::string_view text) {
  SLUICE_ASSIGN_OR_RETURN(Json json, read_json_object<Json>(text));
  const bool is_text = json.value("model_type", Json()) == kTextType;
  if (!is_text) {
    SLUICE_ASSIGN_OR_RETURN(json, text_part(json, "Gemma 3", true));
  }
  HuggingFaceConfig config(json, kModels);
  config.expect_class("Gemma3");
  HuggingFaceModel model = parse(config);
  SLUICE_RETURN_IF_ERROR(config.status());
  SLUICE_ASSIGN_OR_RETURN(model.special, parse_special_tokens(json.dump()));
  model.special = model.special.within(model.shape.vocab);
  if (!is_text) model.notes.emplace_back(kTextAlone);
  return model;
}

}  // namespace sluice::engine
