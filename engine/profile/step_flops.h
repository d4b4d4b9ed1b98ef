// The operations of a model's units per token.
//
// For products, operations are two for each multiplication and addition; for attention they are
// only what its mask leaves. Multiply-accumulates (MACs) are counted as DeepSpeed's and other
// profilers do, for comparison: forward only, and attention with all keys, as if there were no
// mask. For a windowed block they count only the window.
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
  std::uint64_t parameters = 0;  // its own, including adapters and frozen ones
  Flops of_token;                // for a head, forward is the loss alone
  double macs_of_token = 0;      // forward only
};

// In forward order, for sequences of `tokens` tokens.
std::vector<UnitFlops> unit_flops(const ModelLayout& model, std::int64_t tokens);

// The sum over all units; `recompute` as if no unit saved activations.
Flops flops_of_token(const ModelLayout& model, std::int64_t tokens);

// The useful operations of a step per token: forward and backward, without recomputation.
inline double trained_flops(const Flops& flops) { return flops.forward + flops.backward; }

}  // namespace sluice::engine
