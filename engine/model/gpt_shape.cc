#include "engine/model/gpt_shape.h"

#include <string>

#include "engine/config/model_presets.h"

namespace sluice::engine {
namespace {

constexpr double kGpt2Dropout = 0.1;
// Keeps every product of a model's numbers far from the end of 64 bits.
constexpr std::int64_t kLargest = std::int64_t{1} << 24;
constexpr std::int64_t kMostLayers = 65536;

Error refused(const std::string& sentence) {
  return {ErrorCode::kInvalidArgument, "the model cannot be built: " + sentence};
}

Status check_range(std::string_view name, std::int64_t value, std::int64_t largest) {
  if (value >= 1 && value <= largest) return {};
  return refused(std::string(name) + " is " + std::to_string(value) + "; it must be 1 to " +
                 std::to_string(largest));
}

}  // namespace

GptShape gpt_shape(const config::Model& model) {
  return {.layers = model.layers,
          .hidden = model.hidden,
          .heads = model.heads,
          .context_tokens = model.context_tokens,
          .vocab = model.vocab,
          .dropout = model.dropout,
          .ffn_hidden = model.ffn_hidden()};
}

std::optional<GptShape> gpt_preset(std::string_view name) {
  for (const config::NamedShape& known : config::model_presets()) {
    if (known.name != name) continue;
    return GptShape{.layers = known.layers,
                    .hidden = known.hidden,
                    .heads = known.heads,
                    .context_tokens = known.context_tokens,
                    .vocab = known.vocab,
                    .dropout = kGpt2Dropout};
  }
  return std::nullopt;
}

Status validate(const GptShape& shape) {
  SLUICE_RETURN_IF_ERROR(check_range("layers", shape.layers, kMostLayers));
  SLUICE_RETURN_IF_ERROR(check_range("hidden", shape.hidden, kLargest));
  SLUICE_RETURN_IF_ERROR(check_range("heads", shape.heads, kLargest));
  SLUICE_RETURN_IF_ERROR(check_range("context", shape.context_tokens, kLargest));
  SLUICE_RETURN_IF_ERROR(check_range("vocab", shape.vocab, kLargest));
  SLUICE_RETURN_IF_ERROR(check_range("ffn_hidden", shape.ffn(), 4 * kLargest));
  if (shape.hidden % shape.heads != 0) {
    return refused("hidden " + std::to_string(shape.hidden) + " cannot be divided among " +
                   std::to_string(shape.heads) + " heads: make it a multiple of them");
  }
  if (!(shape.dropout >= 0 && shape.dropout < 1)) {
    return refused("dropout is " + std::to_string(shape.dropout) +
                   "; it must be at least 0 and below 1");
  }
  return {};
}

}  // namespace sluice::engine
