#include "engine/train/nvme_folders.h"

#include <algorithm>

#include "aio/missing_folder.h"

namespace sluice::engine {
namespace {

bool may_be_on_nvme(config::OffloadDevice device) {
  return device == config::OffloadDevice::kNvme || device == config::OffloadDevice::kAuto;
}

}  // namespace

std::vector<std::string> nvme_folders(const config::Config& config) {
  std::vector<std::string> folders = config.budget.nvme_paths;
  const auto add = [&](config::OffloadDevice device, const std::vector<std::string>& of_tier) {
    if (!may_be_on_nvme(device)) return;
    for (const std::string& path : of_tier)
      if (std::find(folders.begin(), folders.end(), path) == folders.end()) folders.push_back(path);
  };
  add(config.zero.offload_optimizer.device, config.optimizer_nvme_paths());
  add(config.zero.offload_param.device, config.param_nvme_paths());
  return folders;
}

Status require_nvme_folders(const config::Config& config, aio::FileSystem& files) {
  const std::string key = config.budget.nvme_paths.empty() ? "nvme_path" : "budget.nvme_paths";
  for (const std::string& folder : nvme_folders(config)) {
    SLUICE_RETURN_IF_ERROR(aio::require_folder(files, key, folder));
    SLUICE_RETURN_IF_ERROR(aio::require_mounted(key, folder));
  }
  return {};
}

}  // namespace sluice::engine
