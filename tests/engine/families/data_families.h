// Two families defined by data alone, with GPT-2's units. "ante" and "bellum" share the number
// model.data_heads with different ranges and defaults. Each has one more number, and bellum sizes
// its heads by that.
#pragma once

#include "engine/model/model_family.h"

namespace sluice::engine {

const ModelFamily& ante_family();
const ModelFamily& bellum_family();

// Called once per program, before keys or presets are used.
void add_data_families();

}  // namespace sluice::engine
