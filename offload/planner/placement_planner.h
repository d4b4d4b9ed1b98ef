// The placement planner: the tiers for which predict_step() predicts the shortest step, within
// budgets and rules.
//
// It searches the few numbers of PlacementSpace: first a grid, then from its best points with ever
// smaller changes; then the rest of the GPU is filled with part of a unit, and whatever shortens
// the step by less than a thousandth is given back. Among equally long steps, the one with fewer
// bytes wins. The same input gives the same plan; the work is bounded (about half a second).
//
// Threads: pure functions.
// Errors:  kInvalidArgument for rules that contradict each other, and for units that make no model.
//          Not fitting is not an error: the plan says so.
#pragma once

#include <cstdint>
#include <vector>

#include "aio/result.h"
#include "offload/planner/placement.h"
#include "offload/planner/placement_fit.h"

namespace sluice::offload {

struct PlacementPlan {
  bool fits = false;
  std::vector<UnitPlacement> places;  // where nothing fits: the one that exceeds the budget least
  StepPrediction prediction;
  TierBytes used;
  TierBytes missing;           // beyond the budget
  std::vector<FitHint> hints;  // where nothing fits
};

Result<PlacementPlan> plan_placement(const PlannerInput& input);

}  // namespace sluice::offload
