// The model of a configuration, as it is on the device that the run computes on.
//
// Threads: pure functions.
#pragma once

#include <cstdint>

#include "engine/config/config.h"
#include "engine/model/model_layout.h"
#include "engine/model/model_shape.h"

namespace sluice::engine {

// The configuration's shape; on a GPU the token embedding of 16-bit numbers is padded to whole
// tiles of the tensor cores.
ModelOptions configured_model(const config::Config& config, bool on_gpu);
// The shape must be valid (engine/families/families.h).
ModelLayout configured_layout(const config::Config& config, bool on_gpu);

// Positions that a text may have that the model continues: those it was trained with.
std::int64_t generation_context(const config::Config& config);

}  // namespace sluice::engine
