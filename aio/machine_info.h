// The machine on which a number was measured: without it a measurement has no meaning.
#pragma once

#include <cstdint>
#include <string>

namespace sluice::aio {

struct MachineInfo {
  std::string cpu;  // "unknown" if the kernel does not report it
  int cores = 0;    // on which this process may run
  std::uint64_t ram_bytes = 0;
  std::string kernel;
};
MachineInfo machine_info();

// The processor time available to this process, in cores: limited by the cores on which it may run
// and by the quotas of control groups. Above 0, and not always whole.
double usable_cores();

// The total size of the last-level caches; 0 if the kernel does not report it.
std::uint64_t last_level_cache_bytes();

// The memory that could still be allocated without swapping and within the limits of control
// groups.
std::uint64_t available_ram_bytes();

struct MountInfo {
  std::string file_system;  // "ext4"; "unknown" if it cannot be determined
  std::string device;       // "/dev/nvme0n1p2"
  std::string mount_point;
  std::string device_number;  // "259:1"; empty if it cannot be determined
};
MountInfo mount_info(const std::string& path);

// Like mount_info(), for the text of /proc/self/mountinfo and a device number "major:minor". `path`
// is absolute and is used if no mount has the number (btrfs shows a different one).
MountInfo find_mount(const std::string& mountinfo, const std::string& device_number,
                     const std::string& path);

}  // namespace sluice::aio
