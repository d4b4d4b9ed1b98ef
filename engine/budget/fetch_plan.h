// FetchPlan: how far ahead parameters are fetched, and how many blocks the GPU holds of those that
// pass through it: by the limits that the configuration sets (fetch_limits.h), and by what fits.
//
// Threads: pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/budget/memory_ledger.h"
#include "engine/budget/run_spec.h"

namespace sluice::engine {

struct FetchPlan {
  int prefetch_units = 1;          // ahead of their use
  int block_slots = 3;             // on the GPU, for the parameters of blocks
  std::vector<std::string> notes;  // what is not as it was asked for
};

struct FetchRoom {
  // Slots that are only there for reuse are given up where the places leave too little of it.
  std::optional<std::uint64_t> gpu_bytes;
  int slots = 0;  // already counted: no more than these; 0: not yet
};

// `ledger` is of the same spec; its slots do not matter.
FetchPlan plan_fetching(const RunSpec& spec, const MemoryLedger& ledger,
                        std::span<const offload::UnitPlacement> places, const FetchRoom& room);

}  // namespace sluice::engine
