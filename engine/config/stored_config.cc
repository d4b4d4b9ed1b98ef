#include "engine/config/stored_config.h"

#include <filesystem>

#include "engine/config/resolve.h"

namespace sluice::config {
namespace {

void make_absolute(const std::filesystem::path& working_folder, std::string& path) {
  if (!path.empty()) path = (working_folder / path).lexically_normal().string();
}

}  // namespace

std::string stored_json(const Config& config, const std::string& working_folder) {
  Config stored = config;
  stored.run.dir.clear();
  if (working_folder.empty()) return to_json(stored);
  for (auto* paths : {&stored.data.train, &stored.data.validation, &stored.budget.nvme_paths})
    for (std::string& path : *paths) make_absolute(working_folder, path);
  for (std::string* path : {&stored.model.init_from, &stored.zero.offload_param.nvme_path,
                            &stored.zero.offload_optimizer.nvme_path})
    make_absolute(working_folder, *path);
  return to_json(stored);
}

}  // namespace sluice::config
