// The units of a decoder: code on LibTorch for what decoder_layout() describes.
#pragma once

#include "engine/model/decoder/block_spec.h"
#include "engine/model/model.h"

namespace sluice::engine {

// The options must be valid.
ModelUnits make_decoder_units(const DecoderSpec& spec, const ModelOptions& options);

}  // namespace sluice::engine
