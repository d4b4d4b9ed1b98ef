// The units of a Llama: code on LibTorch for what llama_layout() describes.
#pragma once

#include "engine/model/model.h"

namespace sluice::engine {

// The options must be valid.
ModelUnits make_llama_units(const ModelOptions& options);

}  // namespace sluice::engine
