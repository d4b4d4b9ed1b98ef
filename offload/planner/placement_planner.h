// The placement planner: chooses the tiers for which predict_step() predicts the shortest step,
// within budgets and rules.
//
// It searches the few numbers of PlacementSpace: first a grid, then ever smaller changes from its
// best points. Then it fills the rest of the GPU with part of a unit, and gives back memory that
// shortens the step by less than a thousandth. Among equally long steps, the one with fewer bytes
// wins. A placement that writes more to drives than is allowed comes after all that do not. The
// same input gives the same plan; the work is bounded (about half a second).
//
// If nothing fits, fit_hints() names the changes that would make a placement fit. find_what_ifs()
// names those that would make a placed run faster.
//
// Threads: pure functions; find_what_ifs() makes its plans at the same time (at_once.h).
// Errors:  kInvalidArgument for rules that contradict each other, and for units that form no model.
//          Not fitting is not an error: the plan reports it.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "aio/result.h"
#include "aio/units.h"
#include "offload/planner/placement.h"

namespace sluice::offload {

// Among all placements that the rules allow: one within the budget, or else the one that exceeds it
// least.
struct LeanestPlacement {
  std::vector<UnitPlacement> places;
  TierBytes missing;
};
LeanestPlacement leanest_placement(const PlannerInput& input);

// One change that makes a placement fit.
struct FitHint {
  enum class Change : std::uint8_t {
    kMoreGpu,  // this and the next two: by more_bytes, to within 1%
    kMoreCpu,
    kMoreNvme,   // with a budget of 0: name an NVMe path
    kRecompute,  // this and the next three: if a rule forbids it
    kInputsToCpu,
    kOptimizerAnywhere,  // let the planner place the state
    kParamsAnywhere,
    // Found by callers that know the model:
    kSmallerWaves,       // wave_micro_batches, if the configuration has larger waves
    kSmallerMicroBatch,  // micro_batch, with correspondingly more micro-batches in a step
    kShorterSequences,   // sequence_tokens
    kMoreAccumulation,   // accumulation
    kBf16Moments,
  };
  Change change = Change::kMoreGpu;
  std::uint64_t more_bytes = 0;
  std::int64_t wave_micro_batches = 0;
  std::int64_t micro_batch = 0;
  std::int64_t sequence_tokens = 0;
  std::int64_t accumulation = 0;  // micro-batches in a step
};
// In the order above, without the changes that callers find. Empty: no single change is enough.
std::vector<FitHint> fit_hints(const PlannerInput& input);

struct PlacementPlan {
  bool fits = false;
  std::vector<UnitPlacement> places;  // if nothing fits: exceeds the budget least
  StepPrediction prediction;
  TierBytes used;
  TierBytes missing;             // above the budget
  bool writes_too_much = false;  // nothing is missing, and max_nvme_write_bytes_per_s is exceeded
};

Result<PlacementPlan> plan_placement(const PlannerInput& input);

// What would make a placed run faster, or write less: the same plan with one change.
struct WhatIf {
  enum class Change : std::uint8_t {
    kMoreRam,
    kMoreGpu,
    kTwiceDrives,  // twice the number, at the same speed
    kTwiceMicroBatch,
    kOverlapUpdate,
    kTwiceLink,  // between ranks, within and between hosts
    // Callers that know the model find these: the first two where drives are written.
    kTwiceAccumulation,
    kBf16Moments,
    kFp8,  // products
  };
  Change change = Change::kMoreRam;
  double step_s = 0;
  double tokens_per_s_ratio = 1;  // relative to the plan
  double nvme_write_bytes = 0;    // per step
};

// `tokens`: those of a step, relative to the plan.
WhatIf what_if(WhatIf::Change change, const StepPrediction& plan, const StepPrediction& changed,
               double tokens = 1);
void sort_what_ifs(std::vector<WhatIf>& what_ifs);  // the greatest ratio first

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
