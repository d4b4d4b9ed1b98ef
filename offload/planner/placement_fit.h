// Whether any placement fits, and what would have to change for one to fit.
//
// Threads: pure functions.
#pragma once

#include <cstdint>
#include <vector>

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
  };
  Change change = Change::kMoreGpu;
  std::uint64_t more_bytes = 0;
  std::int64_t wave_micro_batches = 0;
  std::int64_t micro_batch = 0;
  std::int64_t sequence_tokens = 0;
};
// In the order above, without the changes that callers find. Empty: no single change is enough.
std::vector<FitHint> fit_hints(const PlannerInput& input);

}  // namespace sluice::offload
