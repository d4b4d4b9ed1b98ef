// The model of a configuration, as it is on the device that computes the run.
//
// Threads: pure functions.
#pragma once

#include <cstdint>

#include "engine/config/config.h"
#include "engine/model/model_layout.h"
#include "engine/model/model_shape.h"

namespace sluice::engine {

// The configured shape. On a GPU a 16-bit token embedding is padded to whole tensor-core tiles.
ModelOptions configured_model(const config::Config& config, bool on_gpu);
// The shape must be valid (engine/families/families.h).
ModelLayout configured_layout(const config::Config& config, bool on_gpu);

// The longest context, in positions, that the model can continue: the one it was trained with.
std::int64_t generation_context(const config::Config& config);

}  // namespace sluice::engine
