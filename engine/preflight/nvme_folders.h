// The folders of a run's NVMe tiers, which have to exist: a run makes none of them, since a typo or
// an unmounted drive would otherwise fill the root file system.
#pragma once

#include <string>
#include <vector>

#include "aio/file_system.h"
#include "aio/result.h"
#include "engine/config/config.h"

namespace sluice::engine {

// Each once, in the order in which they are named: all of budget.nvme_paths, and of DeepSpeed's
// keys those of a tier that may lie on NVMe.
std::vector<std::string> nvme_folders(const config::Config& config);

// kNotFound names the key that the folder comes from, the folder and the part of its path that
// exists, or the drive that is not mounted there. Creates nothing.
Status require_nvme_folders(const config::Config& config, aio::FileSystem& files);

}  // namespace sluice::engine
