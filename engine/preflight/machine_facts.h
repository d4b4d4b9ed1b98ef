// MachineFacts: the machine's memory, GPU and kernel as it reports them, for the preflight check.
//
// Threads: one; blocking.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "engine/config/config.h"
#include "engine/device/gpu.h"

namespace sluice::engine {

// Unset: the machine does not report it, or sets no limit.
struct MachineFacts {
  std::optional<std::uint64_t> available_bytes;     // MemAvailable of /proc/meminfo
  std::optional<std::uint64_t> cgroup_bytes;        // left by the limits of control groups
  std::optional<std::uint64_t> cgroup_limit_bytes;  // of the group with the effective limit
  std::optional<std::uint64_t> memlock_bytes;       // RLIMIT_MEMLOCK
  std::optional<GpuMemory> gpu;                     // if the configuration computes on it
  std::optional<std::string> uring_refusal;         // why io_uring cannot be used
  int ranks = 1;  // on the host; memory and budget are for one of them
};

// Creates a context on the GPU that the configuration uses, if it uses one.
MachineFacts machine_facts(const config::Config& config);

// The memory that a run may use: the given budget, or else the machine's free memory less a margin.
// On the GPU, CUDA's context counts as the run's, and a budget above what is free means what is
// free: cards sold with 24 GB have less than 24 GiB.
std::optional<std::uint64_t> host_room(const config::Budget& budget, const MachineFacts& facts);
std::optional<std::uint64_t> gpu_room(const config::Budget& budget, const MachineFacts& facts);

// The machine's free memory, without a margin.
std::optional<std::uint64_t> host_free(const MachineFacts& facts);
std::optional<std::uint64_t> gpu_free(const MachineFacts& facts);

}  // namespace sluice::engine
