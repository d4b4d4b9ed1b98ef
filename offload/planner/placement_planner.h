// The placement planner: chooses the tiers for which predict_step() predicts the shortest step,
// within budgets and rules.
//
// It searches the few numbers of PlacementSpace: first a grid, then ever smaller changes from its
// best points. Then it fills the rest of the GPU with part of a unit, and gives back memory that
// shortens the step by less than a thousandth. Among equally long steps, the one with fewer bytes
// wins. The same input gives the same plan; the work is bounded (about half a second).
//
// Threads: pure functions.
// Errors:  kInvalidArgument for rules that contradict each other, and for units that form no model.
//          Not fitting is not an error: the plan reports it.
#pragma once

#include <cstdint>
#include <vector>

#include "aio/result.h"
#include "offload/planner/placement.h"
#include "offload/planner/placement_fit.h"

namespace sluice::offload {

struct PlacementPlan {
  bool fits = false;
  std::vector<UnitPlacement> places;  // if nothing fits: exceeds the budget least
  StepPrediction prediction;
  TierBytes used;
  TierBytes missing;           // above the budget
  std::vector<FitHint> hints;  // if nothing fits
};

Result<PlacementPlan> plan_placement(const PlannerInput& input);

}  // namespace sluice::offload
