// The units of a GPT-2: code on LibTorch for what gpt2_layout() describes.
#pragma once

#include "engine/model/model.h"

namespace sluice::engine {

// The options must be valid.
ModelUnits make_gpt2_units(const ModelOptions& options);

}  // namespace sluice::engine
