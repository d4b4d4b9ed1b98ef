// The numbers of a Gemma 3 text model, and what they mean. Most blocks have a window; every
// full_interval-th sees the whole text, with other rotary frequencies. Without LibTorch.
#pragma once

#include <span>
#include <string_view>

#include "engine/model/decoder/block_spec.h"
#include "engine/model/model_family.h"
#include "engine/model/model_shape.h"

namespace sluice::engine {

inline constexpr std::string_view kGemma3Family = "gemma3";

std::span<const ShapeNumber> gemma3_numbers();

const BlockNames& gemma3_names();

// Whether a block sees the whole text, if every `interval`-th does.
constexpr bool sees_all(std::int64_t layer, std::int64_t interval) {
  return (layer + 1) % interval == 0;
}

// The shape must have all numbers of the family.
DecoderSpec gemma3_spec(const ModelShape& shape);

// ModelFamily::check() and ModelFamily::resolve_derived().
Status check_gemma3(const ModelShape& shape);
void resolve_gemma3(ModelShape& shape);

}  // namespace sluice::engine
