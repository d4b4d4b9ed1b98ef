// The placement planner: the tiers for which predict_step() says the shortest step, within budgets
// and rules.
//
// It searches the few numbers of PlacementSpace: a grid first, then from its best places on with
// ever smaller changes; then the rest of the GPU is filled with part of a unit, and what makes the
// step shorter by less than a thousandth is given back. Of steps that are as long, the one with
// fewer bytes. The same input gives the same plan; the work is bounded (about half a second).
//
// Threads: pure functions.
// Errors:  kInvalidArgument for rules that contradict each other, and for units that make no model.
//          What does not fit is no error: the plan says so.
#pragma once

#include <cstdint>
#include <vector>

#include "aio/result.h"
#include "offload/planner/placement.h"
#include "offload/planner/placement_fit.h"

namespace sluice::offload {

struct PlacementPlan {
  bool fits = false;
  std::vector<UnitPlace> places;  // where nothing fits: the one that is least beyond the budget
  StepPrediction prediction;
  TierBytes used;              // `fixed` included
  TierBytes missing;           // beyond the budget
  std::vector<FitHint> hints;  // where nothing fits
  int predictions = 0;         // that the search took
};

Result<PlacementPlan> plan_placement(const PlannerInput& input);

}  // namespace sluice::offload
