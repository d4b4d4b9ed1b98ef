#include "offload/planner/placement_planner.h"

#include <algorithm>
#include <utility>

#include "offload/planner/placement_search.h"

namespace sluice::offload {
namespace {

Error invalid(const char* what) { return Error(ErrorCode::kInvalidArgument, what); }

Status check_input(const PlannerInput& input) {
  if (input.ledger == nullptr) return invalid("a placement's bytes are counted by a ledger");
  if (input.units.empty()) return invalid("a model without units cannot be placed");
  if (std::all_of(input.units.begin(), input.units.end(),
                  [](const UnitCost& unit) { return unit.elements == 0; }))
    return invalid("a model of which nothing is trained needs no placement");
  const PlacementRules& rules = input.rules;
  if (rules.recompute == Tristate::kOff && rules.boundaries_to_cpu == Tristate::kOn) {
    return invalid(
        "units that recompute nothing keep their inputs on the GPU, so that these cannot go "
        "to the host: leave recompute or boundaries_to_cpu to \"auto\"");
  }
  if (rules.state_on_gpu && rules.recompute == Tristate::kOff &&
      rules.boundaries_to_nvme == Tristate::kOn) {
    return invalid(
        "units that recompute nothing keep their inputs on the GPU, so that these cannot go "
        "to the drives: leave recompute or boundaries_to_nvme to \"auto\"");
  }
  if (!rules.state.empty() && rules.state.size() != input.units.size())
    return invalid("each unit's state has its tiers");
  for (std::size_t i = 0; i < rules.state.size(); ++i) {
    const TierElements& of_unit = rules.state[i];
    if (of_unit.gpu + of_unit.cpu + of_unit.nvme != input.units[i].elements)
      return invalid("the tiers of a unit's state add up to the unit");
  }
  return {};
}

}  // namespace

Result<PlacementPlan> plan_placement(const PlannerInput& input) {
  SLUICE_RETURN_IF_ERROR(check_input(input));
  PlacementPlan plan;
  PlacementSearch search(input);
  if (const auto found = search.run()) {
    plan.fits = true;
    plan.places = search.space().places(found->knobs);
  } else {
    LeanestPlacement leanest = leanest_placement(input);
    plan.fits = leanest.missing.total() == 0;
    plan.places = std::move(leanest.places);
  }
  plan.used = input.ledger->bytes(plan.places);
  plan.missing = plan.used.beyond(input.budget);
  plan.prediction = predict_step(input.units, plan.places, input.speeds, input.step);
  if (!plan.fits) plan.hints = fit_hints(input);
  return plan;
}

}  // namespace sluice::offload
