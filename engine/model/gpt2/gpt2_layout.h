// A GPT-2 as data: its spec, under Hugging Face's names, and its whole model with costs. Without
// LibTorch.
#pragma once

#include "engine/model/decoder/decoder_layout.h"
#include "engine/model/model_layout.h"
#include "engine/model/model_shape.h"

namespace sluice::engine {

// The shape must be valid.
DecoderSpec gpt2_spec(const ModelShape& shape);
ModelLayout gpt2_layout(const ModelOptions& options);

}  // namespace sluice::engine
