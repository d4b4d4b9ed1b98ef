// How GPT-2s differ besides their sizes: ModelShape::numbers by name. OpenAI's models have the
// defaults. Without LibTorch.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>

#include "engine/model/activation.h"
#include "engine/model/model_family.h"
#include "engine/model/model_shape.h"

namespace sluice::engine {

// The choices of model.activation, in the order of Activation.
inline constexpr std::string_view kGpt2Activations = "gelu_new|gelu|relu|silu";

inline constexpr double kGpt2Epsilon = 1e-5;
inline constexpr double kGpt2SmallestEpsilon = 1e-12;
inline constexpr double kGpt2MostEpsilon = 1;

struct Gpt2Variant {
  Activation activation = Activation::kGeluTanh;
  double epsilon = kGpt2Epsilon;  // of all norms
  bool tied = true;               // the output projection is the token embedding
  bool scales_attention = true;   // divides scores by sqrt(head_dim)
  bool scales_by_layer = false;   // and by layer + 1
};

std::span<const ShapeNumber> gpt2_numbers();

// The variant of a shape whose numbers are valid; missing ones have their defaults.
Gpt2Variant gpt2_variant(const ModelShape& shape);
// All numbers of a variant.
std::map<std::string, double> numbers_of(const Gpt2Variant& variant);

}  // namespace sluice::engine
