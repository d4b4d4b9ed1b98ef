// The meaning of a Llama's numbers: ModelShape::numbers by name, with derived defaults ("as many as
// heads") resolved. Without LibTorch.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "engine/model/decoder/block_spec.h"
#include "engine/model/model_family.h"
#include "engine/model/model_shape.h"

namespace sluice::engine {

inline constexpr std::string_view kLlamaFamily = "llama";

// The class in transformers, which decides which biases and norms a model can have. In the order of
// the choices of model.architecture.
enum class LlamaArchitecture : std::uint8_t {
  kLlama,
  kMistral,
  kQwen2,
  kQwen3,
  kMinistral,
  kQwen3Moe,
  kMixtral,
  kGptOss,
  kPhi3
};
inline constexpr std::string_view kLlamaArchitectures =
    "llama|mistral|qwen2|qwen3|ministral|qwen3_moe|mixtral|gpt_oss|phi3";

constexpr bool has_experts(LlamaArchitecture architecture) {
  return architecture == LlamaArchitecture::kQwen3Moe ||
         architecture == LlamaArchitecture::kMixtral || architecture == LlamaArchitecture::kGptOss;
}
// Whether an expert is as wide as the family's feed-forward, and its weights are always divided by
// their sum.
constexpr bool has_ffn_experts(LlamaArchitecture architecture) {
  return has_experts(architecture) && architecture != LlamaArchitecture::kQwen3Moe;
}
// Whether attention can have biases by choice, of all its products.
constexpr bool may_have_attention_bias(LlamaArchitecture architecture) {
  return architecture == LlamaArchitecture::kLlama || architecture == LlamaArchitecture::kQwen3 ||
         architecture == LlamaArchitecture::kQwen3Moe || architecture == LlamaArchitecture::kGptOss;
}
// Whether all blocks have the same window, or none.
constexpr bool has_one_window(LlamaArchitecture architecture) {
  return architecture == LlamaArchitecture::kMistral ||
         architecture == LlamaArchitecture::kQwen3Moe ||
         architecture == LlamaArchitecture::kMixtral || architecture == LlamaArchitecture::kPhi3;
}
// Whether only a part of each head may be rotated, and positions cannot be scaled.
constexpr bool may_rotate_parts(LlamaArchitecture architecture) {
  return architecture == LlamaArchitecture::kPhi3;
}

struct LlamaShape {
  std::int64_t layers = 0;
  std::int64_t hidden = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t ffn = 0;
  std::int64_t vocab = 0;
  double attention_dropout = 0;
  double epsilon = 0;
  LlamaArchitecture architecture = LlamaArchitecture::kLlama;
  bool tied = false;         // the output projection is the token embedding
  bool qkv_bias = false;     // queries, keys and values
  bool output_bias = false;  // attention's projection
  bool mlp_bias = false;
  bool head_norms = false;  // queries and keys
  bool sinks = false;
  ExpertsSpec experts;  // instead of the dense feed-forward of `ffn`
  Rope rope;
  LayerWindow window;
};

std::span<const ShapeNumber> llama_numbers();

// The architecture of a shape that may not have been checked.
LlamaArchitecture llama_architecture(const ModelShape& shape);

// The shape must have all numbers of the family.
LlamaShape llama_shape(const ModelShape& shape);

// ModelFamily::check().
Status check_llama(const ModelShape& shape);

// See ModelFamily::resolve_derived(): resolves derived defaults to numbers.
void settle_llama(ModelShape& shape);

}  // namespace sluice::engine
