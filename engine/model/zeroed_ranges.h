// The parts of a unit's gradient that must be zero before the first pass of a step. They are all
// but the products that this pass overwrites (PassContext::overwrites), including the gaps between
// these.
#pragma once

#include <vector>

#include "engine/model/unit_layout.h"
#include "offload/unit_residency.h"

namespace sluice::engine {

// Ranges of a slot's elements, in ascending order; adjoining ranges are merged.
std::vector<offload::ElementRange> zeroed_ranges(const UnitLayout& layout);

}  // namespace sluice::engine
