// A Llama as data: its spec, under Hugging Face's names, and its whole model with costs. Without
// LibTorch.
#pragma once

#include "engine/model/decoder/decoder_layout.h"
#include "engine/model/llama/llama_shape.h"
#include "engine/model/model_layout.h"

namespace sluice::engine {

DecoderSpec llama_spec(const LlamaShape& shape);
// The names of a Llama's parameters.
const BlockNames& llama_names(LlamaArchitecture architecture);
ModelLayout llama_layout(const ModelOptions& options);

}  // namespace sluice::engine
