// The preflight check: whether this machine has what a run's memory plan needs, and whether its
// drives and limits let it run fast; before anything is allocated.
//
// A budget that is given is obeyed, with a warning where it is more than the machine seems to have
// (some machines grow their memory as it is used). One that is not given comes from MemAvailable
// and the cgroup's limit, less a margin.
//
// Threads: one; blocking. Errors: kOutOfMemory, kNoSpace: what is missing, and the setting that
// would mend it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "aio/file_system.h"
#include "aio/result.h"
#include "engine/config/config.h"
#include "engine/train/memory_plan.h"

namespace sluice::engine {

// What the machine says of itself. Nothing: it does not say, or sets no limit.
struct MachineMemory {
  std::optional<std::uint64_t> available_bytes;  // MemAvailable of /proc/meminfo
  std::optional<std::uint64_t> cgroup_bytes;     // what its limit leaves
  std::optional<std::uint64_t> memlock_bytes;    // RLIMIT_MEMLOCK
};
MachineMemory machine_memory();

struct PreflightReport {
  std::string table;                  // aligned text, one line a tier and part
  std::vector<std::string> warnings;  // sentences
};

Result<PreflightReport> preflight(const config::Config& config, const MemoryPlan& plan,
                                  const MachineMemory& machine, aio::FileSystem& files);

}  // namespace sluice::engine
