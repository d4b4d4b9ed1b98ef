// The GPT-2 family: presets, sizes, parameters and config.json. Its units' code: gpt2_units.h.
#pragma once

#include "engine/model/model_family.h"

namespace sluice::engine {

const ModelFamily& gpt2_family();

}  // namespace sluice::engine
