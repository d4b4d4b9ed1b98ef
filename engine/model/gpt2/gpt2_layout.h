// A GPT-2 as data: its spec, under Hugging Face's names, and its whole model with costs. Without
// LibTorch.
#pragma once

#include <cstdint>

#include "engine/model/decoder/decoder_layout.h"
#include "engine/model/model_layout.h"
#include "engine/model/model_shape.h"

namespace sluice::engine {

inline std::int64_t gpt2_head_dim(const ModelShape& shape) { return shape.hidden / shape.heads; }

// The shape must be valid.
DecoderSpec gpt2_spec(const ModelShape& shape);
// The same for all GPT-2s.
const BlockParameters& gpt2_block_parameters();
ModelLayout gpt2_layout(const ModelOptions& options);

}  // namespace sluice::engine
