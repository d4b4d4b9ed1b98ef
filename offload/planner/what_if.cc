#include "offload/planner/what_if.h"

#include <algorithm>
#include <utility>

namespace sluice::offload {
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
  std::vector<WhatIf> found;
  for (const auto& [what, changed] : changes) {
    SLUICE_ASSIGN_OR_RETURN(const PlacementPlan relieved, plan_placement(changed));
    if (!relieved.fits) continue;
    const double tokens = what == Change::kTwiceMicroBatch ? 2 : 1;
    const double step_s = relieved.prediction.step_s;
    found.push_back({.change = what,
                     .step_s = step_s,
                     .tokens_per_s_ratio = tokens * plan.prediction.step_s / step_s});
  }
  std::stable_sort(found.begin(), found.end(), [](const WhatIf& a, const WhatIf& b) {
    return a.tokens_per_s_ratio > b.tokens_per_s_ratio;
  });
  return found;
}

}  // namespace sluice::offload
