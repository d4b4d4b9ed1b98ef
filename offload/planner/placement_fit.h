// What fits at all, and what would have to change for something to fit.
//
// Threads: pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "offload/planner/placement.h"

namespace sluice::offload {

// Of all placements that the rules allow, one within the budget, or else the one that exceeds it
// least.
struct LeanestPlacement {
  std::vector<UnitPlacement> places;
  TierBytes missing;
};
LeanestPlacement leanest_placement(const PlannerInput& input);

// One change after which a placement fits.
struct FitHint {
  enum class Change : std::uint8_t {
    kMoreGpu,  // by more_bytes, to within 1%, like the next two
    kMoreCpu,
    kMoreNvme,           // with a budget of 0: name an NVMe path
    kRecompute,          // where a rule forbids it, like the next three
    kInputsToCpu,        // likewise
    kOptimizerAnywhere,  // let the planner place the state
    kParamsAnywhere,
    // Found by callers that know the model:
    kSmallerWaves,       // of so many micro-batches, where the configuration gives larger ones
    kSmallerMicroBatch,  // micro_batch, and correspondingly more of them in a step
    kShorterSequences,   // of this many tokens
  };
  Change change = Change::kMoreGpu;
  std::uint64_t more_bytes = 0;
  std::int64_t wave_micro_batches = 0;
  std::int64_t micro_batch = 0;
  std::int64_t sequence_tokens = 0;
};
// In the order above, except for what callers find. Empty: no single change is enough.
std::vector<FitHint> fit_hints(const PlannerInput& input);

}  // namespace sluice::offload
