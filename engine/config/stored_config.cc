#include "engine/config/stored_config.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <utility>
#include <vector>

#include "engine/config/json_text.h"

namespace sluice::config {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPathKeys[] = {
    "/data/train",
    "/data/validation",
    "/budget/nvme_paths",
    "/zero_optimization/offload_param/nvme_path",
    "/model/init_from",
    "/zero_optimization/offload_optimizer/nvme_path",
    "/model/path",
    "/recipe/lora/adapter",
    "/tensorboard/output_path",
    "/csv_monitor/output_path",
    "/flops_profiler/output_file",
    "/samples/prompts",
};

std::vector<std::string*> paths_of(Config& config) {
  std::vector<std::string*> paths = {&config.model.path,
                                     &config.model.init_from,
                                     &config.lora.adapter,
                                     &config.zero.offload_param.nvme_path,
                                     &config.zero.offload_optimizer.nvme_path,
                                     &config.monitors.tensorboard.output_path,
                                     &config.monitors.csv.output_path,
                                     &config.flops_profiler.output_file,
                                     &config.samples.prompts};
  for (auto* list : {&config.data.train, &config.data.validation, &config.budget.nvme_paths})
    for (std::string& path : *list) paths.push_back(&path);
  std::erase_if(paths, [](const std::string* path) { return path->empty(); });
  return paths;
}

// Without "." and doubled slashes. ".." stays, since its target depends on links.
fs::path plain(const fs::path& path) {
  fs::path made;
  for (const fs::path& part : path)
    if (part != "." && !part.empty()) made /= part;
  return made;
}

// Both paths must be plain.
std::optional<fs::path> relative_to(const fs::path& folder, const fs::path& path) {
  const auto parted = std::mismatch(folder.begin(), folder.end(), path.begin(), path.end());
  if (parted.first != folder.end()) return std::nullopt;
  fs::path rest;
  for (auto part = parted.second; part != path.end(); ++part) {
    if (*part == "..") return std::nullopt;
    rest /= *part;
  }
  return rest.empty() ? std::nullopt : std::optional(rest);
}

// The relative paths of runs of earlier versions are relative to the folder in which the run began.
// Such files have run.dir, so the folder is known unless DIR was moved.
std::optional<fs::path> begun_in(const fs::path& run_dir, const fs::path& folder) {
  std::error_code ignored;
  fs::path base = plain(fs::absolute(folder, ignored));
  fs::path dir = plain(run_dir);
  if (dir.is_absolute()) return std::nullopt;
  for (; !dir.empty(); dir = dir.parent_path(), base = base.parent_path())
    if (base.filename() != dir.filename()) return std::nullopt;
  return base;
}

// The base of the relative paths in a DIR/config.json; empty: the working folder. Removes a run.dir
// that means DIR.
fs::path base_of(Json& stored, const fs::path& folder) {
  const Json::json_pointer pointer("/run/dir");
  if (!stored.is_object() || !stored.contains(pointer) || !stored[pointer].is_string() ||
      stored[pointer].get_ref<const std::string&>().empty())
    return folder;
  const auto base = begun_in(stored[pointer].get<std::string>(), folder);
  if (base) stored["run"].erase("dir");
  return base.value_or(fs::path());
}

void put_below(const fs::path& folder, Json& path) {
  if (!path.is_string()) return;
  const auto& text = path.get_ref<const std::string&>();
  if (!text.empty() && fs::path(text).is_relative()) path = (folder / text).string();
}

}  // namespace

Result<Config> stored_config(const Config& config, const std::string& working_folder) {
  Config stored = config;
  stored.run.dir.clear();
  for (std::string* const path : paths_of(stored)) {
    if (working_folder.empty() && fs::path(*path).is_relative())
      return Error(ErrorCode::kNotFound,
                   "the working folder no longer exists, so the relative path " + *path +
                       " cannot be resolved: start in an existing folder, or give absolute paths");
    *path = plain(fs::path(working_folder) / *path).string();
  }
  return stored;
}

// With several ranks, accumulation follows from the step's batch and the number of ranks, which the
// launcher gives and may change.
std::string for_any_ranks(const std::string& json, std::int64_t world) {
  if (world == 1) return json;
  Json content = Json::parse(json);
  content.erase("gradient_accumulation_steps");
  return content.dump(2) + "\n";
}

Result<std::string> stored_json(const Config& config, const std::string& working_folder) {
  SLUICE_ASSIGN_OR_RETURN(const Config stored, stored_config(config, working_folder));
  return for_any_ranks(to_json(stored), config.world_size);
}

Result<std::string> run_folder_json(const Resolved& resolved, const std::string& working_folder) {
  Resolved stored = resolved;
  SLUICE_ASSIGN_OR_RETURN(stored.config, stored_config(resolved.config, working_folder));
  const fs::path folder = plain(fs::path(working_folder) / resolved.config.run.dir);
  for (std::string* const path : paths_of(stored.config))
    if (const auto below = relative_to(folder, *path)) *path = below->string();
  return for_any_ranks(to_json(stored), resolved.config.world_size);
}

Source in_run_folder(Source source, const std::string& folder) {
  auto parsed = read_document(source.name, source.text);
  if (!parsed.ok()) return source;  // resolve() reports the error
  const fs::path base = base_of(*parsed, folder);
  for (const char* const key : kPathKeys) {
    const Json::json_pointer pointer(key);
    if (!parsed->is_object() || !parsed->contains(pointer)) continue;
    for (Json& path : (*parsed)[pointer])
      put_below(base, path);  // a list's elements, or the value itself
  }
  source.text = parsed->dump();
  return source;
}

Result<Config> resolve_stored(const std::string& text) {
  SLUICE_ASSIGN_OR_RETURN(Resolved resolved,
                          resolve({.run_file = Source{.name = "the checkpoint", .text = text}}));
  return std::move(resolved.config);
}

}  // namespace sluice::config
