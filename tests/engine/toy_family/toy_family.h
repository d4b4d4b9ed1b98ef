// "toy": a second family, as unlike GPT-2 as the interfaces allow: RMSNorm, no bias, blocks of two
// kinds (attention; feed-forward) in turns, no position embedding, a head of its own. It is outside
// the program: everything that names it is in this folder, but for the two rows that a program
// adds.
#pragma once

#include "engine/model/model.h"
#include "engine/model/model_family.h"

namespace sluice::engine {

const ModelFamily& toy_family();
ModelUnits make_toy_units(const ModelOptions& options);

// The two rows, once in a program, before it asks for a model or a key.
void add_toy_family();

}  // namespace sluice::engine
