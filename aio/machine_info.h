// What a number was measured on: without it a measurement means nothing.
#pragma once

#include <cstdint>
#include <string>

namespace sluice::aio {

struct MachineInfo {
  std::string cpu;  // "unknown" where the kernel does not report it
  int cores = 0;    // that this process may run on
  std::uint64_t ram_bytes = 0;
  std::string kernel;
};
MachineInfo machine_info();

// How many cores' worth of time this process may have: limited by the cores it may run on and by
// the quotas of control groups. Above 0, and not always whole.
double usable_cores();

// Of the last-level caches, all of them together; 0 where the kernel does not report it.
std::uint64_t last_level_cache_bytes();

// What could still be allocated without swapping and within the limits of control groups.
std::uint64_t available_ram_bytes();

struct MountInfo {
  std::string file_system;  // "ext4"; "unknown" when it cannot be found out
  std::string device;       // "/dev/nvme0n1p2"
  std::string mount_point;
  std::string device_number;  // "259:1"; empty when it cannot be found out
};
MountInfo mount_info(const std::string& path);

// As mount_info, for the text of /proc/self/mountinfo and a device number "major:minor"; `path` is
// absolute and decides where the number is missing (btrfs shows a different one).
MountInfo find_mount(const std::string& mountinfo, const std::string& device_number,
                     const std::string& path);

}  // namespace sluice::aio
