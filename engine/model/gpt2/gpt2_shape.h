// What GPT-2s differ in beside their sizes: ModelShape::numbers by name. Those of OpenAI have the
// defaults. Without LibTorch.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "engine/model/activation.h"
#include "engine/model/model_family.h"
#include "engine/model/model_shape.h"

namespace sluice::engine {

// Of Activation, in its order: the choices of model.activation.
inline constexpr std::string_view kGpt2Activations = "gelu_new|gelu|relu|silu";

inline constexpr double kGpt2Epsilon = 1e-5;
inline constexpr double kGpt2SmallestEpsilon = 1e-12;
inline constexpr double kGpt2MostEpsilon = 1;

struct Gpt2Variant {
  Activation activation = Activation::kGeluTanh;
  double epsilon = kGpt2Epsilon;  // of all norms
  bool tied = true;               // the output projection is the token embedding
  bool scales_attention = true;   // scores by 1 / sqrt(head_dim)
  bool scales_by_layer = false;   // and by 1 / (layer + 1)

  // Of the scores in block `layer`; nothing: 1 / sqrt(head_dim), as everywhere else.
  std::optional<double> attention_scale(std::int64_t head_dim, std::int64_t layer) const;
};

std::span<const ShapeNumber> gpt2_numbers();

// Of a shape whose numbers are valid; one that is missing has its default.
Gpt2Variant gpt2_variant(const ModelShape& shape);
// The numbers that say it: all of them.
std::map<std::string, double> numbers_of(const Gpt2Variant& variant);

}  // namespace sluice::engine
