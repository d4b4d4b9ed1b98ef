// TierUse: what a run takes of each tier, part by part, and its budget there, for reports.
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
  std::optional<std::uint64_t> budget_bytes;  // unset: unknown
};

// What a run may take of each tier; unset: unknown.
struct TierRooms {
  std::optional<std::uint64_t> gpu_bytes;
  std::optional<std::uint64_t> host_bytes;
  std::optional<std::uint64_t> nvme_bytes;
};

// One entry for each tier that the plan uses.
std::vector<TierUse> tiers_of(const engine::MemoryPlan& plan, const TierRooms& rooms = {});

}  // namespace sluice::tools
