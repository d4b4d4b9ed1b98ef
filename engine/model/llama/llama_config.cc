#include "engine/model/llama/llama_config.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <utility>
#include <vector>

#include "aio/bounded_json.h"
#include "engine/model/hugging_face_config.h"
#include "engine/model/llama/llama_classes.h"
#include "engine/model/llama/llama_rope_config.h"
#include "engine/model/llama/llama_shape.h"
#include "engine/weights/special_tokens_json.h"

namespace sluice::engine {
namespace {

using Json = HuggingFaceConfig::Json;
using Architecture = LlamaArchitecture;

constexpr std::int64_t kDefaultMaxWindowLayers = 28;

// Whether a key turns the window on.
bool has_window_switch(Architecture architecture) {
  return architecture == Architecture::kQwen2 || architecture == Architecture::kQwen3 ||
         architecture == Architecture::kQwen3Moe;
}

using Numbers = std::map<std::string, double>;

// ---- windows -----------------------------------------------------------------------------------

// The order of layers with a window as numbers: some without one first, then a fixed number with
// and a fixed number without in turn.
void parse_layer_types(HuggingFaceConfig& config, const Json& types, LayerWindow& window) {
  std::vector<bool> sliding;
  for (const Json& type : types) {
    if (type != kFullLayers && type != kSlidingLayers)
      return config.refuse("layer_types", type, "\"full_attention\" and \"sliding_attention\"");
    sliding.push_back(type == kSlidingLayers);
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

LayerWindow parse_window(HuggingFaceConfig& config, const LlamaClass& of, std::int64_t layers) {
  const Architecture architecture = of.architecture;
  LayerWindow window;
  if (architecture == Architecture::kLlama) return window;
  const bool uses = !has_window_switch(architecture) || config.flag("use_sliding_window", false);
  const bool said = config.json().contains("sliding_window");
  const std::int64_t tokens = config.count("sliding_window", said ? 0 : of.window);
  window.tokens = uses ? tokens : 0;
  if (has_one_window(architecture)) return window;
  if (has_window_switch(architecture))
    window.first = std::min(config.count("max_window_layers", kDefaultMaxWindowLayers, 0), layers);
  if (!config.has("layer_types")) {
    if (architecture == Architecture::kGptOss) window.windowed = window.full = 1;
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
  const bool any = std::find(types.begin(), types.end(), Json(kSlidingLayers)) != types.end();
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
  if (has_window_switch(shape.architecture)) json["use_sliding_window"] = window.tokens != 0;
  if (has_one_window(shape.architecture)) return;
  if (has_window_switch(shape.architecture))
    json["max_window_layers"] = window.tokens == 0 ? shape.layers : window.first;
  Json types = Json::array();
  for (std::int64_t layer = 0; layer < shape.layers; ++layer)
    types.push_back(window.has(layer) ? kSlidingLayers : kFullLayers);
  json["layer_types"] = std::move(types);
}

// ---- experts -----------------------------------------------------------------------------------

// Both names mean the same number in transformers, which writes the second.
std::int64_t parse_expert_count(HuggingFaceConfig& config, std::int64_t default_value) {
  constexpr const char* kEarlier = "num_experts";
  constexpr const char* kNow = "num_local_experts";
  const std::int64_t earlier = config.count(kEarlier, default_value);
  const std::int64_t now = config.count(kNow, earlier);
  if (config.has(kEarlier) && now != earlier)
    config.fail(Error(ErrorCode::kCorrupt, "\"" + std::string(kEarlier) + "\" is " +
                                               std::to_string(earlier) + " and \"" + kNow +
                                               "\" is " + std::to_string(now) +
                                               ", which must be the same"));
  return now;
}

void parse_experts(HuggingFaceConfig& config, const LlamaClass& of, Numbers& numbers) {
  if (!has_experts(of.architecture)) return;
  numbers["experts"] = static_cast<double>(parse_expert_count(config, of.experts));
  numbers["experts_per_token"] =
      static_cast<double>(config.count("num_experts_per_tok", of.experts_per_token));
  constexpr double kBalance = 0.001;
  constexpr double kMostBalance = 1e9;
  const double balance = config.number("router_aux_loss_coef", kBalance, 0, kMostBalance);
  if (config.flag("output_router_logits", false)) numbers["router_aux_loss_coef"] = balance;
  if (of.architecture == Architecture::kGptOss) {
    config.expect("swiglu_alpha", {1.702});
    config.expect("swiglu_limit", {7.0});
    return;
  }
  if (of.architecture == Architecture::kMixtral) {
    const double jitter = config.number("router_jitter_noise", 0, 0, 1);
    if (jitter > 0) config.refuse("router_jitter_noise", jitter, "no noise (0.0)");
    return;
  }
  constexpr std::int64_t kWidth = 768;
  numbers["expert_width"] = static_cast<double>(config.count("moe_intermediate_size", kWidth));
  numbers["norm_topk_prob"] = config.flag("norm_topk_prob", false) ? 1 : 0;
  const std::int64_t sparse_step = config.count("decoder_sparse_step", 1);
  if (sparse_step != 1)
    config.refuse("decoder_sparse_step", sparse_step, "experts in every layer (1)");
  if (!config.has("mlp_only_layers")) return;
  const Json& dense = config.json()["mlp_only_layers"];
  if (dense != Json::array())
    config.refuse("mlp_only_layers", dense, "experts in every layer ([])");
}

void write_experts(const LlamaShape& shape, double balance, Json& json) {
  if (!has_experts(shape.architecture)) return;
  const ExpertsSpec& experts = shape.experts;
  json["num_local_experts"] = experts.count;
  json["num_experts_per_tok"] = experts.per_token;
  json["output_router_logits"] = balance > 0;
  if (balance > 0) json["router_aux_loss_coef"] = balance;
  if (shape.architecture == Architecture::kMixtral) json["router_jitter_noise"] = 0.0;
  if (experts.gate.exists()) {
    json["swiglu_alpha"] = experts.gate.alpha;
    json["swiglu_limit"] = experts.gate.limit;
  }
  if (has_ffn_experts(shape.architecture)) return;
  json["num_experts"] = experts.count;  // the name that programs other than transformers read
  json["moe_intermediate_size"] = experts.width;
  json["norm_topk_prob"] = experts.renormalises;
  json["decoder_sparse_step"] = 1;
  json["mlp_only_layers"] = Json::array();
}

// ---- the file ----------------------------------------------------------------------------------

Result<SpecialTokens> special_tokens(const Json& config, const LlamaClass& of, std::int64_t vocab) {
  constexpr std::int64_t kBegin = 1;
  SLUICE_ASSIGN_OR_RETURN(SpecialTokens tokens, parse_special_tokens(config.dump()));
  if (of.has_begin_and_end && !config.contains("bos_token_id")) tokens.begin = kBegin;
  if (of.has_begin_and_end && !config.contains("eos_token_id")) tokens.ends = {of.end};
  if (of.padding != 0 && !config.contains("pad_token_id")) tokens.padding = of.padding;
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

// gpt-oss' experts on the Hub, which are read as bf16 (engine/weights/stacked_weights.h).
bool is_mxfp4(const HuggingFaceConfig& config, const LlamaClass& of) {
  const Json& quantization = config.json()["quantization_config"];
  return of.architecture == Architecture::kGptOss && quantization.is_object() &&
         quantization.value("quant_method", Json()) == "mxfp4";
}

void check_class(HuggingFaceConfig& config, const LlamaClass& of) {
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
  if (config.has("quantization_config") && !is_mxfp4(config, of))
    config.refuse("quantization_config", config.json()["quantization_config"],
                  "weights of 16 bits or more (none)");
  config.expect("hidden_act", {"silu", "swish"});
  config.expect("is_causal", {true});
  const double residual = config.number("resid_pdrop", 0, 0, 1);
  if (may_rotate_parts(of.architecture) && residual != 0)
    config.refuse("resid_pdrop", residual, "dropout of attention alone (0.0)");
}

// gpt-oss without a word on positions has those of its models.
Json with_default_rope(Json json, const LlamaClass& of) {
  const auto has = [&](const char* key) { return json.contains(key) && !json[key].empty(); };
  if (of.architecture != Architecture::kGptOss || has("rope_parameters") || has("rope_scaling"))
    return json;
  json["rope_parameters"] = {{"rope_type", "yarn"}, {"factor", 32.0},
                             {"beta_fast", 32.0},   {"beta_slow", 1.0},
                             {"truncate", false},   {"original_max_position_embeddings", 4096}};
  return json;
}

// transformers (AutoConfig, since 5.0) makes a Ministral of a Mistral that names the layers with a
// window, because its Mistral has the same window in all layers.
const LlamaClass& computed_class(const Json& json, const LlamaClass& said) {
  const bool by_layer = said.architecture == Architecture::kMistral && json.contains("layer_types");
  return by_layer ? llama_class(Architecture::kMinistral) : said;
}

HuggingFaceModel parse(HuggingFaceConfig& config, const LlamaClass& of) {
  HuggingFaceModel model;
  ModelShape& shape = model.shape;
  shape.family = kLlamaFamily;
  shape.layers = config.count("num_hidden_layers", of.layers);
  shape.hidden = config.count("hidden_size", of.hidden);
  shape.heads = config.count("num_attention_heads", of.heads);
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
  constexpr double kLargestEpsilon = 1000;
  numbers["norm_epsilon"] = config.number("rms_norm_eps", of.epsilon, 0, kLargestEpsilon);
  numbers["tied_head"] = config.flag("tie_word_embeddings", false) ? 1 : 0;
  const bool may_have_bias = may_have_attention_bias(of.architecture);
  numbers["attention_bias"] =
      may_have_bias && config.flag("attention_bias", of.attention_bias) ? 1 : 0;
  numbers["mlp_bias"] =
      of.architecture == Architecture::kLlama && config.flag("mlp_bias", false) ? 1 : 0;
  const LayerWindow window = parse_window(config, of, shape.layers);
  numbers["window"] = static_cast<double>(window.tokens);
  numbers["window_first_layer"] = window.tokens == 0 ? 0 : static_cast<double>(window.first);
  numbers["window_layers"] = window.tokens == 0 ? 0 : static_cast<double>(window.windowed);
  numbers["window_full_layers"] = window.tokens == 0 ? 0 : static_cast<double>(window.full);
  parse_rope(
      config, shape.context_tokens,
      {.default_theta = of.rope_theta, .may_rotate_parts = may_rotate_parts(of.architecture)},
      numbers);
  parse_experts(config, of, numbers);
  return model;
}

}  // namespace

std::string llama_config_text(const HuggingFaceModel& model) {
  const ModelShape& of = model.shape;
  const LlamaShape shape = llama_shape(of);
  const LlamaClass& its = llama_class(shape.architecture);
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
  if (may_have_attention_bias(shape.architecture)) json["attention_bias"] = shape.output_bias;
  if (may_rotate_parts(shape.architecture)) json["partial_rotary_factor"] = shape.rope.share;
  if (shape.architecture == Architecture::kLlama) json["mlp_bias"] = shape.mlp_bias;
  write_experts(shape, balance_coefficient(of), json);
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
  for (const LlamaClass& of : llama_classes()) {
    if (type != of.model_type) continue;
    HuggingFaceConfig config(with_default_rope(json, of), of.models);
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
