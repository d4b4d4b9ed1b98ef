// The family of Gemma 3 text models: presets, numbers, parameters and config.json.
#pragma once

#include "engine/model/model_family.h"

namespace sluice::engine {

const ModelFamily& gemma3_family();

}  // namespace sluice::engine
