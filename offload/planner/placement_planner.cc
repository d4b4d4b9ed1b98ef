#include "offload/planner/placement_planner.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "aio/units.h"
#include "offload/planner/at_once.h"
#include "offload/planner/placement_search.h"
#include "offload/planner/placement_space.h"

namespace sluice::offload {
namespace {

constexpr int kSharesTried = 32;  // shares of state on the GPU
constexpr int kOffloadsTried = 8;
// Never suggests a GPU larger than any that exists (MI355X).
constexpr std::uint64_t kLargestGpu = 288 * kGiB;

bool nothing(const TierBytes& bytes) { return bytes.total() == 0; }

// The cost of a shortage. One large shortage is better than smaller ones on several tiers, because
// one change can fix it, unless that tier would have to be many times as large. GPU memory is the
// hardest to get.
double cost_of(const TierBytes& missing, const TierBytes& budget) {
  constexpr double kCostOfGpu = 2;
  int tiers = 0;
  double shares = 0;
  const auto add = [&](std::uint64_t bytes, std::uint64_t of, double cost) {
    tiers += static_cast<int>(bytes > 0);
    shares += cost * static_cast<double>(bytes) / static_cast<double>(std::max(of, kGiB));
  };
  add(missing.gpu, budget.gpu, kCostOfGpu);
  add(missing.cpu, budget.cpu, 1);
  add(missing.nvme, budget.nvme, 1);
  return tiers * shares;
}

bool fits(const PlannerInput& input) { return nothing(leanest_placement(input).missing); }

std::uint64_t& budget_of(PlannerInput& input, FitHint::Change change) {
  if (change == FitHint::Change::kMoreGpu) return input.budget.gpu;
  return change == FitHint::Change::kMoreCpu ? input.budget.cpu : input.budget.nvme;
}

// The smallest addition to the budget that is enough, to within a hundredth of the shortage.
std::optional<std::uint64_t> more_needed(PlannerInput input, FitHint::Change change) {
  constexpr std::uint64_t kPlenty = std::uint64_t{1} << 50;
  const std::uint64_t budget = budget_of(input, change);
  const auto is_enough = [&](std::uint64_t more) {
    budget_of(input, change) = budget + more;
    return fits(input);
  };
  if (!is_enough(kPlenty)) return std::nullopt;
  std::uint64_t too_little = 0;
  std::uint64_t enough = kMiB;
  while (!is_enough(enough)) too_little = std::exchange(enough, 2 * enough);
  while (enough - too_little > std::max<std::uint64_t>(enough / 128, 4096)) {
    const std::uint64_t middle = too_little + (enough - too_little) / 2;
    (is_enough(middle) ? enough : too_little) = middle;
  }
  return enough;
}

bool fits_without(PlannerInput input, FitHint::Change change) {
  PlacementRules& rules = input.rules;
  switch (change) {
    case FitHint::Change::kRecompute:
      if (rules.recompute != Tristate::kOff) return false;
      rules.recompute = Tristate::kAuto;
      break;
    case FitHint::Change::kInputsToCpu:
      if (rules.unit_inputs_to_cpu != Tristate::kOff) return false;
      rules.unit_inputs_to_cpu = Tristate::kAuto;
      break;
    case FitHint::Change::kOptimizerAnywhere:
      if (rules.state.empty()) return false;
      rules.state.clear();
      break;
    case FitHint::Change::kParamsAnywhere:
      if (!rules.params) return false;
      rules.params.reset();
      break;
    default:
      return false;
  }
  return fits(input);
}

}  // namespace

LeanestPlacement leanest_placement(const PlannerInput& input) {
  const PlacementSpace space(input);
  const int kept = space.min_kept();
  const int least = space.min_offloaded(kept);
  const int more = space.max_offloaded(kept) - least;
  const std::vector<std::uint64_t>& steps = space.gpu_steps();
  LeanestPlacement leanest;
  // State on the GPU: first none. Offloaded inputs: first all. Residents: none or all; with all
  // there are no slots.
  for (int share = 0; share <= kSharesTried; ++share) {
    for (int leaving = kOffloadsTried; leaving >= 0; --leaving) {
      const int offloaded = least + more * leaving / kOffloadsTried;
      for (const int choice : {0, 1, 2, 3}) {
        const bool spills = choice >= 2;
        if (spills && space.max_spilled(offloaded) == space.min_spilled(offloaded)) break;
        const int resident = choice % 2 == 0 ? 0 : space.max_resident();
        const PlacementKnobs knobs{
            .gpu_elements =
                steps[(steps.size() - 1) * static_cast<std::size_t>(share) / kSharesTried],
            .resident = resident,
            .kept = kept,
            .offloaded = offloaded,
            .spilled = spills ? space.max_spilled(offloaded) : 0};
        std::vector<UnitPlacement> places = space.places(knobs);
        const TierBytes missing = input.ledger->bytes(places).beyond(input.budget);
        if (!leanest.places.empty() &&
            cost_of(missing, input.budget) >= cost_of(leanest.missing, input.budget))
          continue;
        leanest = {std::move(places), missing};
        if (nothing(missing)) return leanest;
      }
      if (more == 0) break;
    }
  }
  return leanest;
}

std::vector<FitHint> fit_hints(const PlannerInput& input) {
  using Change = FitHint::Change;
  std::vector<FitHint> hints;
  for (const Change change : {Change::kMoreGpu, Change::kMoreCpu, Change::kMoreNvme}) {
    const auto more = more_needed(input, change);
    if (!more) continue;
    if (change == Change::kMoreGpu && input.budget.gpu + *more > kLargestGpu) continue;
    hints.push_back({.change = change, .more_bytes = *more});
  }
  for (const Change change : {Change::kRecompute, Change::kInputsToCpu, Change::kOptimizerAnywhere,
                              Change::kParamsAnywhere}) {
    if (fits_without(input, change)) hints.push_back({.change = change});
  }
  return hints;
}

namespace {

Error invalid(const char* what) { return Error(ErrorCode::kInvalidArgument, what); }

Status check_input(const PlannerInput& input) {
  if (input.ledger == nullptr) return invalid("a placement's bytes are counted by a ledger");
  if (input.units.empty()) return invalid("a model without units cannot be placed");
  if (std::all_of(input.units.begin(), input.units.end(),
                  [](const UnitCost& unit) { return unit.elements == 0; }))
    return invalid("a model of which nothing is trained needs no placement");
  const PlacementRules& rules = input.rules;
  if (rules.recompute == Tristate::kOff && rules.unit_inputs_to_cpu == Tristate::kOn) {
    return invalid(
        "units that recompute nothing keep their inputs on the GPU, so inputs cannot be moved to "
        "the host: set recompute or unit_inputs_to_cpu to \"auto\"");
  }
  if (rules.state_on_gpu && rules.recompute == Tristate::kOff &&
      rules.unit_inputs_to_nvme == Tristate::kOn) {
    return invalid(
        "units that recompute nothing keep their inputs on the GPU, so inputs cannot be moved to "
        "the drives: set recompute or unit_inputs_to_nvme to \"auto\"");
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
    plan.places = search.space().places(found->knobs);
  } else {
    plan.places = leanest_placement(input).places;
  }
  plan.used = input.ledger->bytes(plan.places);
  plan.missing = plan.used.beyond(input.budget);
  plan.prediction = predict_step(input.units, plan.places, input.speeds, input.step);
  plan.writes_too_much = plan.missing.total() == 0 && excess_writes(input, plan.prediction) > 0;
  plan.fits = plan.missing.total() == 0 && !plan.writes_too_much;
  return plan;
}

WhatIf what_if(WhatIf::Change change, const StepPrediction& plan, const StepPrediction& changed,
               double tokens) {
  return {.change = change,
          .step_s = changed.step_s,
          .tokens_per_s_ratio = tokens * plan.step_s / changed.step_s,
          .nvme_write_bytes = changed.nvme_write_bytes};
}

void sort_what_ifs(std::vector<WhatIf>& what_ifs) {
  std::stable_sort(what_ifs.begin(), what_ifs.end(), [](const WhatIf& a, const WhatIf& b) {
    return a.tokens_per_s_ratio > b.tokens_per_s_ratio;
  });
}

namespace {

bool uses_drives(const PlacementPlan& plan) {
  return plan.prediction.nvme_read_bytes + plan.prediction.nvme_write_bytes > 0;
}

}  // namespace

Result<std::vector<WhatIf>> find_what_ifs(const PlannerInput& input, const PlacementPlan& plan,
                                          const WhatIfOptions& options) {
  using Change = WhatIf::Change;
  std::vector<std::pair<Change, PlannerInput>> changes;
  const auto change = [&](Change what) -> PlannerInput& {
    return changes.emplace_back(what, input).second;
  };
  change(Change::kMoreRam).budget.cpu += options.more_ram_bytes;
  if (input.rules.state_on_gpu) change(Change::kMoreGpu).budget.gpu += options.more_gpu_bytes;
  if (uses_drives(plan)) {
    DuplexRates& drives = change(Change::kTwiceDrives).speeds.drives;
    for (double* const rate : {&drives.in_bytes_per_s, &drives.out_bytes_per_s,
                               &drives.in_both_bytes_per_s, &drives.out_both_bytes_per_s})
      *rate *= 2;
  }
  if (plan.prediction.link_bytes > 0) {
    LinkSpeeds& link = change(Change::kTwiceLink).speeds.link;
    for (double* const rate :
         {&link.gather_bytes_per_s, &link.exchange_bytes_per_s, &link.network_bytes_per_s})
      *rate *= 2;
  }
  if (options.twice_micro_batch) {
    SLUICE_ASSIGN_OR_RETURN(change(Change::kTwiceMicroBatch), options.twice_micro_batch(input));
  }
  if (!input.step.overlap_update) change(Change::kOverlapUpdate).step.overlap_update = true;
  SLUICE_ASSIGN_OR_RETURN(const auto relieved,
                          made_at_once<PlacementPlan>(changes.size(), [&](std::size_t i) {
                            return plan_placement(changes[i].second);
                          }));
  std::vector<WhatIf> found;
  for (std::size_t i = 0; i < changes.size(); ++i) {
    if (!relieved[i].fits) continue;
    const Change what = changes[i].first;
    found.push_back(what_if(what, plan.prediction, relieved[i].prediction,
                            what == Change::kTwiceMicroBatch ? 2 : 1));
  }
  sort_what_ifs(found);
  return found;
}

}  // namespace sluice::offload
