#include "engine/preflight/nvme_folders.h"

#include <algorithm>

#include "aio/missing_folder.h"

namespace sluice::engine {
namespace {

bool may_be_on_nvme(config::OffloadDevice device) {
  return device == config::OffloadDevice::kNvme || device == config::OffloadDevice::kAuto;
}

struct NamedFolder {
  std::string path;
  const char* key = "";  // the first key that names it
};

std::vector<NamedFolder> named_folders(const config::Config& config) {
  std::vector<NamedFolder> folders;
  const auto add = [&](const std::vector<std::string>& paths, const char* key) {
    for (const std::string& path : paths) {
      if (std::none_of(folders.begin(), folders.end(),
                       [&](const NamedFolder& folder) { return folder.path == path; }))
        folders.push_back({.path = path, .key = key});
    }
  };
  add(config.budget.nvme_paths, "budget.nvme_paths");
  if (!folders.empty()) return folders;  // they are used for every tier
  if (may_be_on_nvme(config.zero.offload_optimizer.device))
    add(config.optimizer_nvme_paths(), "zero_optimization.offload_optimizer.nvme_path");
  if (config.placement.unit_inputs_to_nvme == Tristate::kOn)
    add(config.unit_input_nvme_paths(), "placement.unit_inputs_to_nvme");
  if (config.placement.gradients_to_nvme == Tristate::kOn)
    add(config.gradient_nvme_paths(), "placement.gradients_to_nvme");
  if (may_be_on_nvme(config.zero.offload_param.device))
    add(config.param_nvme_paths(), "zero_optimization.offload_param.nvme_path");
  return folders;
}

}  // namespace

std::vector<std::string> nvme_folders(const config::Config& config) {
  std::vector<std::string> paths;
  for (const NamedFolder& folder : named_folders(config)) paths.push_back(folder.path);
  return paths;
}

Status require_nvme_folders(const config::Config& config, aio::FileSystem& files) {
  for (const NamedFolder& folder : named_folders(config)) {
    SLUICE_RETURN_IF_ERROR(aio::require_folder(files, folder.key, folder.path));
    SLUICE_RETURN_IF_ERROR(aio::require_mounted(folder.key, folder.path));
  }
  return {};
}

}  // namespace sluice::engine
