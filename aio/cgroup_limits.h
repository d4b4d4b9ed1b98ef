// The memory and processor time that control groups leave to this process.
//
// Supports version 2 (memory.max, memory.high, cpu.max), version 1 (memory.limit_in_bytes,
// cpu.cfs_quota_us) and both at once. Among the groups from this process's own up to the root, the
// one that leaves the least decides. The kernel counts page cache as used but reclaims it on
// demand, so it does not count here. Files are read below `root`, which tests set.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace sluice::aio {

struct CgroupMemory {
  std::uint64_t limit_bytes = 0;
  std::uint64_t used_bytes = 0;  // without memory that can be reclaimed immediately

  std::uint64_t room_bytes() const {
    return limit_bytes > used_bytes ? limit_bytes - used_bytes : 0;
  }
};

// Empty if no group sets a limit.
std::optional<CgroupMemory> cgroup_memory(const std::string& root = "");

// In cores: 1.5 for a quota of 150 ms in each 100 ms. Empty if there is no quota.
std::optional<double> cgroup_cores(const std::string& root = "");

}  // namespace sluice::aio
