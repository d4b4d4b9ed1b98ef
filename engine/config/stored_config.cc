#include "engine/config/stored_config.h"

#include <filesystem>
#include <utility>

namespace sluice::config {
namespace {

void make_absolute(const std::filesystem::path& working_folder, std::string& path) {
  if (!path.empty()) path = (working_folder / path).lexically_normal().string();
}

}  // namespace

Config stored_config(const Config& config, const std::string& working_folder) {
  Config stored = config;
  stored.run.dir.clear();
  if (working_folder.empty()) return stored;
  for (auto* paths : {&stored.data.train, &stored.data.validation, &stored.budget.nvme_paths})
    for (std::string& path : *paths) make_absolute(working_folder, path);
  for (std::string* path : {&stored.model.init_from, &stored.zero.offload_param.nvme_path,
                            &stored.zero.offload_optimizer.nvme_path})
    make_absolute(working_folder, *path);
  return stored;
}

std::string stored_json(const Config& config, const std::string& working_folder) {
  return to_json(stored_config(config, working_folder));
}

std::string stored_json(const Resolved& resolved, const std::string& working_folder) {
  Resolved stored = resolved;
  stored.config = stored_config(resolved.config, working_folder);
  return to_json(stored);
}

Result<Config> resolve_stored(const std::string& text) {
  SLUICE_ASSIGN_OR_RETURN(Resolved resolved,
                          resolve({.run_file = Source{.name = "the checkpoint", .text = text}}));
  return std::move(resolved.config);
}

}  // namespace sluice::config
