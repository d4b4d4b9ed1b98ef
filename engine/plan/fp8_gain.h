// What products in fp8 would bring to a plan in bf16 (engine/model/fp8_recipe.h).
//
// Threads: one.
// Errors:  those of planning.
#pragma once

#include <optional>

#include "aio/result.h"
#include "engine/plan/placed_run.h"
#include "offload/planner/placement_planner.h"

namespace sluice::engine {

// The run with fp8.enabled. Its unit times are estimated from those in bf16 and the rates of the
// GPU's data sheet (gpu_sheets.h). Nothing for a GPU that is not in that table or has no fp8, or if
// the run does not compute in bf16.
Result<std::optional<offload::WhatIf>> fp8_what_if(const PlanSubject& subject,
                                                   const PlacedRun& placed);

}  // namespace sluice::engine
