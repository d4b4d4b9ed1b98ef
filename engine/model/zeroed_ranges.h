// The parts of a unit's gradient that have to be zero before the first pass of a step: all but the
// products that this pass overwrites (PassContext::overwrites), including the gaps between them.
#pragma once

#include <vector>

#include "engine/model/unit_layout.h"
#include "offload/unit_residency.h"

namespace sluice::engine {

// Of a slot's elements, in ascending order; adjoining ranges are one.
std::vector<offload::ElementRange> zeroed_ranges(const UnitLayout& layout);

}  // namespace sluice::engine
