// Specs and numbers of families' models, for tests.
#pragma once

#include <string_view>

#include "engine/families/families.h"
#include "engine/model/decoder/decoder_layout.h"

namespace sluice::engine {

// The family must be one of decoders.
inline DecoderSpec spec_of(const ModelShape& shape) { return decoder_spec(shape).value(); }

// The number "architecture" of a Llama that is this class of transformers.
inline double architecture(std::string_view model_type) {
  for (const ShapeNumber& number : find_family("llama")->numbers())
    if (number.name() == "architecture") return number.place(model_type).value();
  return -1;
}

}  // namespace sluice::engine
