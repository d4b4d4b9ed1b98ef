// From a plan to the optimizer's placement: sub-groups that give each tier the elements that the
// plan gives it, in each unit those of the GPU first, then RAM's, then NVMe's.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "aio/result.h"
#include "offload/step_model.h"
#include "offload/sub_groups.h"

namespace sluice::offload {

// Sub-groups of at most `sub_group_elements`, within parameter groups, in ascending order.
// kInvalidArgument: a unit whose place has other elements than it, or a sub-group size of 0.
Result<std::vector<SubGroup>> place_by_plan(std::span<const UnitSpec> units,
                                            std::uint64_t sub_group_elements,
                                            std::span<const UnitPlace> places);

}  // namespace sluice::offload
