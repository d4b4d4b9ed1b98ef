// FetchPlan: how far ahead parameters are fetched, and how many slots the GPU has for the blocks
// that pass through it. Limited by the configuration (fetch_limits.h) and by the available memory.
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
  int prefetch_units = 1;          // units fetched ahead of their use
  int block_slots = 3;             // for the parameters of blocks on the GPU
  std::vector<std::string> notes;  // where the plan differs from the configuration
};

struct FetchRoom {
  // Slots that exist only for reuse are given up if the placement leaves less GPU memory than this.
  std::optional<std::uint64_t> gpu_bytes;
  int slots = 0;  // upper bound that the planner counted with; 0: none yet
};

// `ledger` has the same spec; its slots are ignored.
FetchPlan plan_fetching(const RunSpec& spec, const MemoryLedger& ledger,
                        std::span<const offload::UnitPlacement> places, const FetchRoom& room);

}  // namespace sluice::engine
