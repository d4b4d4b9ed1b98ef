// MachineFacts: what a machine reports about its memory, its GPU and its kernel, for the preflight
// check.
//
// Threads: one; blocking.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "engine/config/config.h"
#include "engine/device/gpu.h"

namespace sluice::engine {

// Nothing: the machine does not report it, or sets no limit.
struct MachineFacts {
  std::optional<std::uint64_t> available_bytes;     // MemAvailable of /proc/meminfo
  std::optional<std::uint64_t> cgroup_bytes;        // what the limits of control groups leave
  std::optional<std::uint64_t> cgroup_limit_bytes;  // of the group that sets it
  std::optional<std::uint64_t> memlock_bytes;       // RLIMIT_MEMLOCK
  std::optional<GpuMemory> gpu;                     // where the configuration computes there
  std::optional<std::string> uring_refusal;         // why io_uring cannot be used
  int ranks = 1;  // of the host: memory and budget are those of one of them
};

// Makes the context of the GPU that the configuration uses, if it uses one.
MachineFacts machine_facts(const config::Config& config);

// What a run may take of the host's memory: the given budget, else what the machine has free, less
// a margin. The same for the GPU, where CUDA's context counts as the run's, and where a budget
// above what is free gives what is free: "24 GB" cards have less than 24 GiB.
std::optional<std::uint64_t> host_room(const config::Budget& budget, const MachineFacts& facts);
std::optional<std::uint64_t> gpu_room(const config::Budget& budget, const MachineFacts& facts);

// What the machine has free, without a margin.
std::optional<std::uint64_t> host_free(const MachineFacts& facts);
std::optional<std::uint64_t> gpu_free(const MachineFacts& facts);

}  // namespace sluice::engine
