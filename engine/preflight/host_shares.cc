#include "engine/preflight/host_shares.h"

#include <cstdint>
#include <optional>

namespace sluice::engine {

config::Budget budget_of_rank(config::Budget budget, int ranks) {
  if (budget.cpu_gib) *budget.cpu_gib /= ranks;
  return budget;
}

MachineFacts facts_of_rank(MachineFacts facts, int ranks) {
  for (std::optional<std::uint64_t>* bytes : {&facts.available_bytes, &facts.cgroup_bytes})
    if (*bytes) **bytes /= static_cast<std::uint64_t>(ranks);
  facts.ranks *= ranks;
  return facts;
}

MemoryPlan plan_of_host(MemoryPlan plan, int ranks) {
  for (MemoryLine& line : plan.nvme) {
    line.bytes *= static_cast<std::uint64_t>(ranks);
    for (PathBytes& path : line.paths) path.bytes *= static_cast<std::uint64_t>(ranks);
  }
  return plan;
}

}  // namespace sluice::engine
