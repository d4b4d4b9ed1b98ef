// The meaning of a Llama's numbers: ModelShape::numbers by name, with derived defaults ("as many as
// heads") resolved. Without LibTorch.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "engine/model/model_family.h"
#include "engine/model/model_shape.h"
#include "engine/model/row_pieces.h"

namespace sluice::engine {

inline constexpr std::string_view kLlamaFamily = "llama";

// The class in transformers, which decides which biases and norms a model can have. In the order of
// the choices of model.architecture.
enum class LlamaArchitecture : std::uint8_t { kLlama, kMistral, kQwen2, kQwen3, kMinistral };
inline constexpr std::string_view kLlamaArchitectures = "llama|mistral|qwen2|qwen3|ministral";

// How positions beyond the original training context are mapped, by transformers' names. In the
// order of the choices of model.rope_scaling.
enum class RopeScaling : std::uint8_t { kNone, kLinear, kDynamic, kYarn, kLlama3 };
inline constexpr std::string_view kRopeScalings = "none|linear|dynamic|yarn|llama3";

struct Rope {
  double theta = 0;
  RopeScaling scaling = RopeScaling::kNone;
  double factor = 1;
  std::int64_t original_context = 0;  // the original training context
  double low_frequency_factor = 1;    // llama3
  double high_frequency_factor = 4;
  double attention_factor = 0;  // yarn; 0: from factor and the two below
  double mscale = 0;
  double mscale_all_dim = 0;
  double beta_fast = 32;
  double beta_slow = 1;
  bool truncate = true;
};

// The blocks that have a window: from block `first` on, `windowed` of them alternate with `full`
// blocks without one. windowed 0: all blocks from `first` on.
struct LlamaWindow {
  std::int64_t tokens = 0;  // 0: no block has one
  std::int64_t first = 0;
  std::int64_t windowed = 0;
  std::int64_t full = 0;

  bool has(std::int64_t layer) const {
    if (tokens == 0 || layer < first) return false;
    return windowed == 0 || (layer - first) % (windowed + full) < windowed;
  }
};

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
  Rope rope;
  LlamaWindow window;
  std::int64_t piece_rows = kPieceRows;  // of the feed-forward; smaller only in tests

  std::int64_t query_width() const { return heads * head_dim; }
  std::int64_t key_width() const { return kv_heads * head_dim; }
  std::int64_t qkv_width() const { return query_width() + 2 * key_width(); }
};

std::span<const ShapeNumber> llama_numbers();

// The shape must have all numbers of the family.
LlamaShape llama_shape(const ModelShape& shape);

// ModelFamily::check().
Status check_llama(const ModelShape& shape);

// See ModelFamily::resolve_derived(): resolves derived defaults to numbers.
void settle_llama(ModelShape& shape);

}  // namespace sluice::engine
