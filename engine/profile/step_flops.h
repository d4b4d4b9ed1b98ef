// What the units of a model compute for a token, as numbers.
//
// Operations are those of products, two for each multiplication and addition, and of attention
// those that its mask leaves: what is computed. Multiply-accumulates (MACs) are counted as
// DeepSpeed's and other profilers count them: of forward, and of attention with all keys, as if
// nothing were masked, so that the two can be compared. Of a windowed block they count the window
// alone.
//
// Threads: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/model/model_layout.h"

namespace sluice::engine {

struct UnitFlops {
  std::string name;
  std::string kind;
  UnitRole role = UnitRole::kBlock;
  std::uint64_t parameters = 0;  // its own, those of adapters and of what is frozen
  Flops of_token;                // of a head, forward is the loss alone
  double macs_of_token = 0;      // of forward
};

// In forward order, in sequences of so many tokens.
std::vector<UnitFlops> unit_flops(const ModelLayout& model, std::int64_t tokens);

// Of all units; `recompute` as if no unit kept anything.
Flops flops_of_token(const ModelLayout& model, std::int64_t tokens);

// What a step is for: forward and backward of a token, without what is computed again.
inline double trained_flops(const Flops& flops) { return flops.forward + flops.backward; }

}  // namespace sluice::engine
