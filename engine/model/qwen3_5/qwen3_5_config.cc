#include "engine/model/qwen3_5/qwen3_5_config.h"

#include <span>
#include <utility>
#include <vector>

#include "aio/bounded_json.h"
#include "engine/model/hugging_face_config.h"
#include "engine/model/qwen3_5/qwen3_5_shape.h"
#include "engine/weights/special_tokens_json.h"

namespace sluice::engine {
namespace {

using Json = HuggingFaceConfig::Json;

constexpr const char* kModels = "Qwen3.5s";
constexpr const char* kFull = "full_attention";
constexpr const char* kLinear = "linear_attention";
constexpr const char* kRope = "rope_parameters";

constexpr const char* kTextAlone =
    "Sluice trains the model's text part: its vision encoder, and what predicts several tokens at "
    "once, are left out";

// A class of transformers, with its defaults.
struct Class {
  const char* name;
  const char* text_type;  // "model_type" of the text model
  bool has_experts;
  const char* ffn_key;
  std::int64_t layers;
  std::int64_t hidden;
  std::int64_t ffn;
  std::int64_t kv_heads;
};
constexpr Class kClasses[] = {
    {"Qwen3_5", "qwen3_5_text", false, "intermediate_size", 32, 4096, 12288, 4},
    {"Qwen3_5Moe", "qwen3_5_moe_text", true, "shared_expert_intermediate_size", 40, 2048, 512, 2}};

// The keys of counts, by our names, with the defaults of both classes.
struct Count {
  const char* key;
  const char* number;
  std::int64_t default_value;
};
constexpr const char* kKvHeads = "num_key_value_heads";
constexpr Count kCounts[] = {{"head_dim", "head_dim", 256},
                             {"linear_num_key_heads", "delta_key_heads", 16},
                             {"linear_num_value_heads", "delta_value_heads", 32},
                             {"linear_key_head_dim", "delta_key_dim", 128},
                             {"linear_value_head_dim", "delta_value_dim", 128},
                             {"linear_conv_kernel_dim", "delta_taps", 4}};
constexpr Count kExpertCounts[] = {{"num_experts", "experts", 256},
                                   {"num_experts_per_tok", "experts_per_token", 8},
                                   {"moe_intermediate_size", "expert_width", 512}};

void parse_rope(HuggingFaceConfig& config, std::map<std::string, double>& numbers) {
  constexpr double kMost = 1e18;
  constexpr double kDefaultTheta = 10000;
  constexpr double kDefaultShare = 0.25;
  Json rope = Json::object();
  for (const char* const key : {kRope, "rope_scaling"}) {
    if (!config.has(key) || config.json()[key] == Json::object()) continue;
    if (config.json()[key].is_object())
      rope = config.json()[key];
    else
      config.fail(Error(ErrorCode::kCorrupt, "\"" + std::string(key) + "\" is " +
                                                 config.json()[key].dump() +
                                                 ", which is not an object"));
  }
  const Json type = rope.value("rope_type", rope.value("type", Json("default")));
  // All of the text's angles are those of its positions, however they are interleaved.
  if (type != "default" && type != "mrope") config.refuse("rope_type", type, "\"default\"");
  for (const auto& [key, value] : rope.items())
    if (value.is_object()) config.refuse(kRope, rope, "one object for all layers");
  HuggingFaceConfig own(rope, kModels);
  const auto read = [&](const char* key, double default_value, double least, double most) {
    const double outside = config.number(key, default_value, least, most);
    return own.number(key, outside, least, most);
  };
  numbers["rope_theta"] = read("rope_theta", kDefaultTheta, 1, kMost);
  constexpr const char* kShare = "partial_rotary_factor";
  numbers["rope_share"] = read(kShare, kDefaultShare, 0, 1);
  // transformers then rotates whole heads.
  if (config.json().contains(kShare) && !config.has(kShare) && !own.has(kShare))
    config.refuse(kShare, Json(), "a number");
  if (!own.status().ok()) config.fail(own.status().error());
}

void parse_experts(HuggingFaceConfig& config, std::map<std::string, double>& numbers) {
  for (const Count& count : kExpertCounts)
    numbers[count.number] = static_cast<double>(config.count(count.key, count.default_value));
  if (config.flag("output_router_logits", false))
    config.refuse("output_router_logits", true, "the loss of the text alone (false)");
  // Keys of relatives, which transformers computes in one way here.
  config.expect("norm_topk_prob", {true});
  config.expect("decoder_sparse_step", {1});
  config.expect("mlp_only_layers", {Json::array()});
}

HuggingFaceModel parse(HuggingFaceConfig& config, const Class& of) {
  HuggingFaceModel model;
  ModelShape& shape = model.shape;
  shape.family = kQwen35Family;
  shape.layers = config.count("num_hidden_layers", of.layers);
  shape.hidden = config.count("hidden_size", of.hidden);
  shape.heads = config.count("num_attention_heads", 16);
  shape.context_tokens = config.count("max_position_embeddings", 32768);
  shape.vocab = config.count("vocab_size", 248320);
  shape.ffn_hidden = config.count(of.ffn_key, of.ffn);
  constexpr double kMostDropout = 0.999;
  shape.dropout = config.number("attention_dropout", 0, 0, kMostDropout);
  auto& numbers = shape.numbers;
  numbers["kv_heads"] = static_cast<double>(config.count(kKvHeads, of.kv_heads));
  for (const Count& count : kCounts)
    numbers[count.number] = static_cast<double>(config.count(count.key, count.default_value));
  if (of.has_experts) parse_experts(config, numbers);
  constexpr double kLargestEpsilon = 1000;
  numbers["norm_epsilon"] = config.number("rms_norm_eps", 1e-6, 0, kLargestEpsilon);
  numbers["tied_head"] = config.flag("tie_word_embeddings", false) ? 1 : 0;
  numbers["attention_bias"] = config.flag("attention_bias", false) ? 1 : 0;
  numbers["attention_interval"] = static_cast<double>(
      config.full_interval(config.count("full_attention_interval", 4), shape.layers, kLinear));
  parse_rope(config, numbers);
  config.expect("hidden_act", {"silu", "swish"});
  config.expect("is_causal", {true});
  config.expect("attn_output_gate", {true});
  config.expect("output_gate_type", {"swish", "silu"});
  return model;
}

}  // namespace

std::string qwen3_5_config_text(const HuggingFaceModel& model) {
  const ModelShape& shape = model.shape;
  const DecoderSpec spec = qwen3_5_spec(shape);
  const AttentionSpec& attention = spec.block.attention;
  const Class& of = kClasses[spec.block.experts.exist() ? 1 : 0];
  Json json = {{"architectures", {std::string(of.name) + "ForCausalLM"}},
               {"model_type", of.text_type},
               {"vocab_size", shape.vocab},
               {"hidden_size", shape.hidden},
               {of.ffn_key, shape.ffn()},
               {"num_hidden_layers", shape.layers},
               {"num_attention_heads", shape.heads},
               {kKvHeads, attention.kv_heads}};
  const auto write = [&](std::span<const Count> counts) {
    for (const Count& count : counts)
      json[count.key] = static_cast<std::int64_t>(shape.numbers.at(count.number));
  };
  write(kCounts);
  if (of.has_experts) {
    write(kExpertCounts);
    json["output_router_logits"] = false;
  }
  json["hidden_act"] = "silu";
  json["max_position_embeddings"] = shape.context_tokens;
  json["rms_norm_eps"] = spec.block.epsilon;
  json["tie_word_embeddings"] = spec.tied;
  json["attention_bias"] = attention.qkv_bias;
  json["attention_dropout"] = attention.dropout;
  json["full_attention_interval"] = spec.attention_interval;
  Json types = Json::array();
  for (std::int64_t layer = 0; layer < shape.layers; ++layer)
    types.push_back(spec.attends(layer) ? kFull : kLinear);
  json["layer_types"] = std::move(types);
  json[kRope] = {{"rope_type", "default"},
                 {"rope_theta", attention.rope.theta},
                 {"partial_rotary_factor", attention.rope.share}};
  json["bos_token_id"] = to_json(model.special.begin);
  json["eos_token_id"] = to_json(model.special.ends);
  json["pad_token_id"] = to_json(model.special.padding);
  json["dtype"] = hugging_face_dtype(model.dtype);
  return json.dump(2) + "\n";
}

Result<HuggingFaceModel> parse_qwen3_5_config(std::string_view text) {
  SLUICE_ASSIGN_OR_RETURN(Json json, read_json_object<Json>(text));
  const Json type = json.value("model_type", Json());
  const Class& of = kClasses[type == "qwen3_5_moe" || type == kClasses[1].text_type ? 1 : 0];
  const bool is_text = type == of.text_type;
  if (!is_text) {
    SLUICE_ASSIGN_OR_RETURN(json, text_part(json, "Qwen3.5", false));
  }
  HuggingFaceConfig config(json, kModels);
  config.expect_class(of.name);
  HuggingFaceModel model = parse(config, of);
  SLUICE_RETURN_IF_ERROR(config.status());
  SLUICE_ASSIGN_OR_RETURN(model.special, parse_special_tokens(json.dump()));
  model.special = model.special.within(model.shape.vocab);
  if (!is_text) model.notes.emplace_back(kTextAlone);
  return model;
}

}  // namespace sluice::engine
