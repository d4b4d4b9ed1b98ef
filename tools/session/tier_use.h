// TierUse: what a run takes of each tier, part by part, and may take: for who looks at it later.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/budget/memory_plan.h"

namespace sluice::tools {

struct TierUse {
  std::string tier;  // "gpu", "cpu", "nvme"
  std::vector<engine::MemoryLine> lines;
  std::uint64_t bytes = 0;
  std::optional<std::uint64_t> budget_bytes;  // unset: it is not known
};

// What a run may take; unset: it is not known.
struct TierRooms {
  std::optional<std::uint64_t> gpu_bytes;
  std::optional<std::uint64_t> host_bytes;
  std::optional<std::uint64_t> nvme_bytes;
};

// Of the tiers that the plan takes something of.
std::vector<TierUse> tiers_of(const engine::MemoryPlan& plan, const TierRooms& rooms = {});

}  // namespace sluice::tools
