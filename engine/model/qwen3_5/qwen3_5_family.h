// The family of Qwen3.5 and Qwen3.6 text models: presets, numbers, parameters and config.json.
#pragma once

#include "engine/model/model_family.h"

namespace sluice::engine {

const ModelFamily& qwen3_5_family();

}  // namespace sluice::engine
