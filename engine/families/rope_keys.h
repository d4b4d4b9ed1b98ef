// The rotary positions in a config.json: transformers 5's rope_parameters, or rope_theta and
// rope_scaling of earlier versions. Without LibTorch.
#pragma once

#include <vector>

#include "engine/families/family_table.h"

namespace sluice::engine {

// Reads and writes rope_theta, and of a class with more scalings than one all of rope_rows().
extern const ConfigPart kRopePart;
// The same, written under rope_parameters alone.
extern const ConfigPart kRopeParametersPart;
// The numbers of scaled positions.
std::vector<ConfigRow> rope_rows();
// The lists of longrope.
std::vector<ShapeList> rope_lists();
// FamilyClass::rotates_parts.
ConfigRow rope_share_row(double default_value, ConfigUse use);

}  // namespace sluice::engine
