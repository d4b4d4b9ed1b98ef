// "toy": a second family, as different from GPT-2 as the interfaces allow: RMSNorm, no biases,
// alternating blocks of two kinds (attention; feed-forward), no position embedding, an untied head.
// It is not part of the program: all code that names it is in this folder, except for the two rows
// that a test program adds.
#pragma once

#include "engine/model/model.h"
#include "engine/model/model_family.h"

namespace sluice::engine {

const ModelFamily& toy_family();
ModelUnits make_toy_units(const ModelOptions& options);

// Adds the two rows. Called once per program, before it uses a model or a key.
void add_toy_family();

}  // namespace sluice::engine
