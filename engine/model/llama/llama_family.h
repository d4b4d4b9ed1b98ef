// The Llama family: presets, numbers, parameters and config.json of Llama, Mistral, Ministral,
// Qwen2 and Qwen3. Its units' code: llama_units.h.
#pragma once

#include "engine/model/model_family.h"

namespace sluice::engine {

const ModelFamily& llama_family();

}  // namespace sluice::engine
