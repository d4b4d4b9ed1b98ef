#include "engine/model/gpt2/gpt2_config.h"

#include <utility>

#include "engine/weights/special_tokens_json.h"

namespace sluice::engine {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kEpsilon = 1e-5;
constexpr std::int64_t kLargest = std::int64_t{1} << 32;
// The vocabulary's end in GPT-2, which transformers assumes where a file does not say.
constexpr std::int64_t kGpt2EndOfText = 50256;

std::string dtype_name(DType dtype) {
  switch (dtype) {
    case DType::kBF16:
      return "bfloat16";
    case DType::kF16:
      return "float16";
    default:
      return "float32";
  }
}

Error different(const std::string& key, const Json& value, const std::string& wanted) {
  return Error(ErrorCode::kInvalidArgument, "\"" + key + "\" is " + value.dump() +
                                                ", and Sluice computes GPT-2s with " + wanted +
                                                " alone");
}

// The values that a key may have; the first is its default.
Status expect(const Json& config, const char* key, const std::vector<Json>& known) {
  const Json value = config.value(key, known.front());
  for (const Json& one : known)
    if (value == one) return {};
  return different(key, value, known.front().dump());
}

struct CountKey {
  const char* name;
  const char* common_name = nullptr;  // of all of transformers' models
};

Status count(const Json& config, const CountKey& key, std::int64_t& value) {
  std::optional<Json> said;
  for (const char* const name : {key.name, key.common_name}) {
    if (name == nullptr) continue;
    const auto found = config.find(name);
    if (found == config.end() || found->is_null()) continue;
    if (!found->is_number_integer() || *found < 1 || *found > kLargest)
      return Error(ErrorCode::kCorrupt, "\"" + std::string(name) + "\" is " + found->dump() +
                                            ", which is not such a count");
    if (said && *said != *found)
      return Error(ErrorCode::kCorrupt, "\"" + std::string(key.name) + "\" is " + said->dump() +
                                            ", and \"" + name + "\" " + found->dump());
    said = *found;
    value = found->get<std::int64_t>();
  }
  return {};
}

Status probability(const Json& config, const char* key, double& value) {
  const auto found = config.find(key);
  if (found == config.end()) return {};
  if (!found->is_number() || *found < 0 || *found >= 1)
    return Error(ErrorCode::kCorrupt,
                 "\"" + std::string(key) + "\" is " + found->dump() + ", which is not a dropout");
  value = found->get<double>();
  return {};
}

// A token outside of the vocabulary is none: small models have GPT-2's default, and no such token.
Result<SpecialTokens> special_tokens(const Json& config, std::int64_t vocab) {
  SLUICE_ASSIGN_OR_RETURN(SpecialTokens tokens, parse_special_tokens(config.dump()));
  if (!config.contains("bos_token_id")) tokens.begin = kGpt2EndOfText;
  if (!config.contains("eos_token_id")) tokens.ends = {kGpt2EndOfText};
  return tokens.within(vocab);
}

Status check_architecture(const Json& config) {
  if (config.value("model_type", Json()) != "gpt2")
    return different("model_type", config.value("model_type", Json()), "\"gpt2\"");
  SLUICE_RETURN_IF_ERROR(expect(config, "activation_function", {"gelu_new", "gelu_pytorch_tanh"}));
  SLUICE_RETURN_IF_ERROR(expect(config, "layer_norm_epsilon", {kEpsilon}));
  SLUICE_RETURN_IF_ERROR(expect(config, "scale_attn_weights", {true}));
  SLUICE_RETURN_IF_ERROR(expect(config, "scale_attn_by_inverse_layer_idx", {false}));
  SLUICE_RETURN_IF_ERROR(expect(config, "add_cross_attention", {false}));
  return expect(config, "tie_word_embeddings", {true});
}

constexpr const char* kDifferentDropouts =
    "its dropouts differ (resid_pdrop, embd_pdrop, attn_pdrop): model.dropout is resid_pdrop's, "
    "for all three";

// transformers' defaults, for what a file does not say.
HuggingFaceModel default_model() {
  return {.shape = {.layers = 12,
                    .hidden = 768,
                    .heads = 12,
                    .context_tokens = 1024,
                    .vocab = 50257,
                    .dropout = 0.1}};
}

Result<HuggingFaceModel> parse(const Json& json) {
  SLUICE_RETURN_IF_ERROR(check_architecture(json));
  HuggingFaceModel model = default_model();
  ModelShape& shape = model.shape;
  SLUICE_RETURN_IF_ERROR(count(json, {"n_layer", "num_hidden_layers"}, shape.layers));
  SLUICE_RETURN_IF_ERROR(count(json, {"n_embd", "hidden_size"}, shape.hidden));
  SLUICE_RETURN_IF_ERROR(count(json, {"n_head", "num_attention_heads"}, shape.heads));
  SLUICE_RETURN_IF_ERROR(
      count(json, {"n_positions", "max_position_embeddings"}, shape.context_tokens));
  SLUICE_RETURN_IF_ERROR(count(json, {"vocab_size"}, shape.vocab));
  shape.ffn_hidden = 4 * shape.hidden;
  SLUICE_RETURN_IF_ERROR(count(json, {"n_inner"}, shape.ffn_hidden));
  double embedding_dropout = shape.dropout;
  double attention_dropout = shape.dropout;
  SLUICE_RETURN_IF_ERROR(probability(json, "resid_pdrop", shape.dropout));
  SLUICE_RETURN_IF_ERROR(probability(json, "embd_pdrop", embedding_dropout));
  SLUICE_RETURN_IF_ERROR(probability(json, "attn_pdrop", attention_dropout));
  if (shape.dropout != embedding_dropout || shape.dropout != attention_dropout)
    model.notes.emplace_back(kDifferentDropouts);
  SLUICE_ASSIGN_OR_RETURN(model.special, special_tokens(json, shape.vocab));
  return model;
}

}  // namespace

std::string gpt2_config_text(const HuggingFaceModel& model) {
  const ModelShape& shape = model.shape;
  const Json inner = shape.ffn() == 4 * shape.hidden ? Json() : Json(shape.ffn());
  const Json json = {{"architectures", {"GPT2LMHeadModel"}},
                     {"model_type", "gpt2"},
                     {"n_layer", shape.layers},
                     {"n_embd", shape.hidden},
                     {"n_head", shape.heads},
                     {"n_positions", shape.context_tokens},
                     {"n_inner", inner},
                     {"vocab_size", shape.vocab},
                     {"activation_function", "gelu_new"},
                     {"layer_norm_epsilon", kEpsilon},
                     {"resid_pdrop", shape.dropout},
                     {"embd_pdrop", shape.dropout},
                     {"attn_pdrop", shape.dropout},
                     {"tie_word_embeddings", true},
                     {"bos_token_id", to_json(model.special.begin)},
                     {"eos_token_id", to_json(model.special.ends)},
                     {"pad_token_id", to_json(model.special.padding)},
                     {"dtype", dtype_name(model.dtype)}};
  return json.dump(2) + "\n";
}

Result<HuggingFaceModel> parse_gpt2_config(std::string_view text) {
  const Json json = Json::parse(text, nullptr, false);
  if (!json.is_object()) return Error(ErrorCode::kCorrupt, "it is not a JSON object");
  return parse(json);
}

}  // namespace sluice::engine
