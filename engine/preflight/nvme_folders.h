// The folders of a run's NVMe tiers, which must exist. A run creates none of them, because a typo
// or an unmounted drive would otherwise fill the root file system.
#pragma once

#include <string>
#include <vector>

#include "aio/file_system.h"
#include "aio/result.h"
#include "engine/config/config.h"

namespace sluice::engine {

// Each folder once, in the order of the keys: all of budget.nvme_paths, or else those of
// DeepSpeed's keys for tiers that may be on NVMe.
std::vector<std::string> nvme_folders(const config::Config& config);

// kNotFound names the key, the folder, and the existing part of its path, or the drive that is not
// mounted there. Creates nothing.
Status require_nvme_folders(const config::Config& config, aio::FileSystem& files);

}  // namespace sluice::engine
