#include "tools/session/tier_use.h"

namespace sluice::tools {

std::vector<TierUse> tiers_of(const engine::MemoryPlan& plan, const TierRooms& rooms) {
  std::vector<TierUse> tiers;
  const auto add = [&](const char* tier, const std::vector<engine::MemoryLine>& lines,
                       std::uint64_t bytes, const std::optional<std::uint64_t>& budget_bytes) {
    if (bytes > 0) tiers.push_back({tier, lines, bytes, budget_bytes});
  };
  add("gpu", plan.gpu, plan.gpu_bytes(), rooms.gpu_bytes);
  add("cpu", plan.host, plan.host_bytes(), rooms.host_bytes);
  add("nvme", plan.nvme, plan.nvme_bytes(), rooms.nvme_bytes);
  return tiers;
}

}  // namespace sluice::tools
