// The wear of NVMe drives, from the health page that each keeps (NVMe: Get Log Page 02h).
//
// Threads: any; blocking. Creates and changes nothing.
#pragma once

#include <cstddef>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "aio/result.h"

namespace sluice::aio {

struct NvmeHealth {
  int used_percent = 0;  // of the rated endurance; may exceed 100
  double written_tb = 0;
  // The rated endurance, which no drive tells: from both, once so much is used that the drive's
  // whole percentages tell it within a tenth.
  std::optional<double> rated_tb = {};
};

// Several drives as one: the share of the most used, and all that is written.
NvmeHealth together(const NvmeHealth& a, const NvmeHealth& b);

inline constexpr std::size_t kNvmeHealthBytes = 512;
NvmeHealth parse_nvme_health(std::span<const std::byte, kNvmeHealthBytes> page);

// The controllers ("nvme0") of the drives that a block device ("259:1") consists of: its own, those
// below a partition, and all below a volume or a RAID. Empty if one of them is no NVMe drive.
// `root`: the folder that has sys/.
std::set<std::string> nvme_controllers(const std::string& block_device,
                                       const std::string& root = "");

// The number of the block device that holds a folder. Some file systems (btrfs) have a number of
// their own, and their mount names the device.
std::string block_device_of(const std::string& folder);

// The drives that hold the folders, each counted once.
// Errors: kUnsupported: not all are NVMe drives; kPermission: only root may ask the drive; others
//         of the drive or the kernel.
Result<NvmeHealth> nvme_health(const std::vector<std::string>& folders);

}  // namespace sluice::aio
