#include "engine/model/gpt_shape.h"

#include <array>
#include <string>

namespace sluice::engine {
namespace {

constexpr std::int64_t kGpt2Vocab = 50257;
constexpr double kGpt2Dropout = 0.1;
// Keeps every product of a model's numbers far from the end of 64 bits.
constexpr std::int64_t kLargest = std::int64_t{1} << 24;
constexpr std::int64_t kMostLayers = 65536;

constexpr std::array<std::string_view, 5> kNames = {"gpt2-small", "gpt2-medium", "gpt2-large",
                                                    "gpt2-xl", "gpt-lite"};
// Radford et al., "Language Models are Unsupervised Multitask Learners", 2019, table 2.
constexpr std::array<GptShape, 5> kShapes = {{
    {12, 768, 12, 1024, kGpt2Vocab, kGpt2Dropout},
    {24, 1024, 16, 1024, kGpt2Vocab, kGpt2Dropout},
    {36, 1280, 20, 1024, kGpt2Vocab, kGpt2Dropout},
    {48, 1600, 25, 1024, kGpt2Vocab, kGpt2Dropout},
    {12, 768, 12, 2048, kGpt2Vocab, kGpt2Dropout},
}};

Error refused(const std::string& sentence) {
  return {ErrorCode::kInvalidArgument, "the model cannot be built: " + sentence};
}

Status check_range(std::string_view name, std::int64_t value, std::int64_t largest) {
  if (value >= 1 && value <= largest) return {};
  return refused(std::string(name) + " is " + std::to_string(value) + "; it must be 1 to " +
                 std::to_string(largest));
}

}  // namespace

std::optional<GptShape> gpt_preset(std::string_view name) {
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    if (kNames[i] == name) return kShapes[i];
  }
  return std::nullopt;
}

std::span<const std::string_view> gpt_preset_names() { return kNames; }

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
