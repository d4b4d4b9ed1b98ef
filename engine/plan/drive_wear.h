// What a planned run writes to the drives of a host, and what would write less.
//
// Threads: one.
// Errors:  those of planner_input().
#pragma once

#include <optional>
#include <vector>

#include "aio/result.h"
#include "engine/plan/placed_run.h"

namespace sluice::engine {

struct DriveWear {
  double tb_per_day = 0;  // of all ranks of a host
  double days = 0;        // of training until the rated endurance is reached
};
// Empty: the plan writes nothing.
std::optional<DriveWear> drive_wear(const RunPlan& plan);

// What the plan would write with this change, by all ranks of a host.
double tb_per_day(const RunPlan& plan, const offload::WhatIf& with);

// For a run that writes more than budget.nvme_tb_per_day: single changes with which it does not.
// Each has been planned. Takes seconds.
Result<std::vector<offload::FitHint>> wear_hints(const PlanSubject& subject,
                                                 const PlacedRun& placed);

// Changes that may write less, if the run writes to drives.
Result<std::vector<offload::WhatIf>> wear_what_ifs(const PlanSubject& subject,
                                                   const PlacedRun& placed);

}  // namespace sluice::engine
