#include "engine/preflight/machine_facts.h"

#include <sys/resource.h>

#include <algorithm>
#include <fstream>

#include "aio/cgroup_limits.h"
#include "aio/units.h"
#include "aio/uring_backend.h"
#include "engine/budget/memory_plan.h"
#include "engine/device/gpu.h"

namespace sluice::engine {
namespace {

// Fraction of the reported memory that is kept free for the page cache, other programs, and errors
// of estimates.
constexpr double kMargin = 0.08;

std::optional<std::uint64_t> first_number(const std::string& path, const std::string& key) {
  std::ifstream file(path);
  for (std::string word; file >> word;) {
    std::uint64_t number = 0;
    if (word == key && file >> number) return number;
  }
  return std::nullopt;
}

std::optional<std::uint64_t> room(std::optional<double> budget_gib,
                                  std::optional<std::uint64_t> free_bytes) {
  if (budget_gib) return static_cast<std::uint64_t>(*budget_gib * kGiB);
  if (!free_bytes) return std::nullopt;
  return static_cast<std::uint64_t>(static_cast<double>(*free_bytes) * (1 - kMargin));
}

}  // namespace

MachineFacts machine_facts(const config::Config& config) {
  MachineFacts facts;
  const auto available_kib = first_number("/proc/meminfo", "MemAvailable:");
  if (available_kib) facts.available_bytes = *available_kib * kKiB;
  if (const auto cgroup = aio::cgroup_memory()) {
    facts.cgroup_bytes = cgroup->room_bytes();
    facts.cgroup_limit_bytes = cgroup->limit_bytes;
  }
  struct rlimit limit {};
  if (::getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
    facts.memlock_bytes = limit.rlim_cur;
  if (uses_cuda(config)) facts.gpu = cuda_memory();
  const auto uring = aio::UringBackend::create({.queue_depth = 1});
  if (!uring.ok()) facts.uring_refusal = uring.error().message();
  return facts;
}

std::optional<std::uint64_t> host_free(const MachineFacts& facts) {
  if (!facts.cgroup_bytes || !facts.available_bytes)
    return facts.cgroup_bytes ? facts.cgroup_bytes : facts.available_bytes;
  return std::min(*facts.cgroup_bytes, *facts.available_bytes);
}

std::optional<std::uint64_t> gpu_free(const MachineFacts& facts) {
  if (!facts.gpu) return std::nullopt;
  return std::min(facts.gpu->free_bytes + kCudaContextBytes, facts.gpu->total_bytes);
}

std::optional<std::uint64_t> host_room(const config::Budget& budget, const MachineFacts& facts) {
  return room(budget.cpu_gib, host_free(facts));
}

std::optional<std::uint64_t> gpu_room(const config::Budget& budget, const MachineFacts& facts) {
  const auto free = gpu_free(facts);
  const auto wanted = room(budget.gpu_gib, free);
  return free && wanted ? std::min(*free, *wanted) : wanted;
}

}  // namespace sluice::engine
