#include "engine/model/gpt2/gpt2_shape.h"

#include <string>
#include <vector>

namespace sluice::engine {
namespace {

// The names are those of the keys after "model.".
constexpr const char* kActivation = "activation";
constexpr const char* kNormEpsilon = "norm_epsilon";
constexpr const char* kTiedHead = "tied_head";
constexpr const char* kScale = "scale_attention";
constexpr const char* kScaleByLayer = "scale_attention_by_layer";

ShapeNumber later_word(std::string_view key, std::string_view choices, double default_value,
                       std::string_view meaning) {
  return {.key = key,
          .default_value = default_value,
          .choices = choices,
          .omit_if_default = true,
          .meaning = meaning};
}

std::vector<ShapeNumber> make_numbers() {
  return {
      later_word("model.activation", kGpt2Activations, 0,
                 "activation function of the feed-forward layer (activation_function); gelu_new is "
                 "the tanh approximation, gelu is exact"),
      {.key = "model.norm_epsilon",
       .default_value = kGpt2Epsilon,
       .minimum = kGpt2SmallestEpsilon,
       .maximum = kGpt2MostEpsilon,
       .omit_if_default = true,
       .meaning = "layer_norm_epsilon"},
      later_word("model.tied_head", kSwitchChoices, 1,
                 "use the token embedding as the output projection (tie_word_embeddings)"),
      later_word(
          "model.scale_attention", kSwitchChoices, 1,
          "divide attention scores by the square root of the head width (scale_attn_weights)"),
      later_word("model.scale_attention_by_layer", kSwitchChoices, 0,
                 "also divide attention scores by the block's number, counted from 1 "
                 "(scale_attn_by_inverse_layer_idx)"),
  };
}

}  // namespace

std::span<const ShapeNumber> gpt2_numbers() {
  static const std::vector<ShapeNumber> numbers = make_numbers();
  return numbers;
}

Gpt2Variant gpt2_variant(const ModelShape& shape) {
  const auto number = [&](const char* name, double usual) {
    const auto found = shape.numbers.find(name);
    return found == shape.numbers.end() ? usual : found->second;
  };
  const Gpt2Variant usual;
  return {.activation = static_cast<Activation>(
              static_cast<int>(number(kActivation, static_cast<double>(usual.activation)))),
          .epsilon = number(kNormEpsilon, usual.epsilon),
          .tied = number(kTiedHead, usual.tied ? 1 : 0) != 0,
          .scales_attention = number(kScale, usual.scales_attention ? 1 : 0) != 0,
          .scales_by_layer = number(kScaleByLayer, usual.scales_by_layer ? 1 : 0) != 0};
}

std::map<std::string, double> numbers_of(const Gpt2Variant& variant) {
  return {{kActivation, static_cast<double>(variant.activation)},
          {kNormEpsilon, variant.epsilon},
          {kTiedHead, variant.tied ? 1 : 0},
          {kScale, variant.scales_attention ? 1 : 0},
          {kScaleByLayer, variant.scales_by_layer ? 1 : 0}};
}

}  // namespace sluice::engine
