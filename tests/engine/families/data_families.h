// Two families that are data alone, with GPT-2's units: "ante" and "bellum" share the number
// model.data_heads, in other ranges and with other defaults; each has one more of its own, and
// bellum sizes its heads by that one.
#pragma once

#include "engine/model/model_family.h"

namespace sluice::engine {

const ModelFamily& ante_family();
const ModelFamily& bellum_family();

// Once in a program, before it asks for keys or presets.
void add_data_families();

}  // namespace sluice::engine
