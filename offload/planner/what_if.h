// What would make a placed run faster, and by how much: the same plan with one change.
//
// Threads: pure functions.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "aio/result.h"
#include "aio/units.h"
#include "offload/planner/placement_planner.h"

namespace sluice::offload {

struct WhatIf {
  enum class Change : std::uint8_t {
    kMoreRam,
    kMoreGpu,
    kTwiceDrives,  // twice the number, at the same speed
    kTwiceMicroBatch,
    kOverlapUpdate,
    kTwiceLink,  // between ranks, within and between hosts
  };
  Change change = Change::kMoreRam;
  double step_s = 0;
  double tokens_per_s_ratio = 1;  // relative to the plan
};

struct WhatIfOptions {
  std::uint64_t more_ram_bytes = 16 * kGiB;
  std::uint64_t more_gpu_bytes = 8 * kGiB;
  // The same model with twice the micro-batch; unset: this change is not tried.
  std::function<Result<PlannerInput>(const PlannerInput& input)> twice_micro_batch;
};

// The greatest ratio first. Omitted are changes after which nothing fits, and changes already in
// effect (overlap). So are those that concern what the plan does not use (drives, a link) or the
// machine does not have (a GPU). Takes as long as that many plans. Returns the errors of
// plan_placement() and of the options.
Result<std::vector<WhatIf>> find_what_ifs(const PlannerInput& input, const PlacementPlan& plan,
                                          const WhatIfOptions& options = {});

}  // namespace sluice::offload
