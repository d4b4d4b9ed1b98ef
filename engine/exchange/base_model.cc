#include "engine/exchange/base_model.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "aio/bounded_json.h"
#include "aio/small_file.h"
#include "engine/checkpoint/checkpoint_names.h"
#include "engine/exchange/described_model.h"
#include "engine/families/families.h"
#include "engine/model/hugging_face_config.h"
#include "engine/weights/special_tokens.h"

namespace sluice::engine {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::uint64_t kMostBytes = 16 << 20;

// Empty if there is no such file, or it cannot be read.
std::string text_of(aio::IoQueue& queue, const std::string& path) {
  const auto text = aio::read_small_file(queue, path, kMostBytes);
  return text.ok() ? *text : std::string();
}

std::string trimmed(std::string_view text) {
  const auto first = text.find_first_not_of(" \t\r");
  if (first == std::string_view::npos) return {};
  return std::string(text.substr(first, text.find_last_not_of(" \t\r") - first + 1));
}

// The plain or quoted value in a line "key: value"; empty for any other form of value.
std::string scalar(const std::string& value) {
  constexpr std::string_view kOfMore = "[{|>&*!%@`#";
  if (value.empty()) return {};
  if (value.front() == '"' || value.front() == '\'') {
    const auto end = value.find(value.front(), 1);
    return end == std::string::npos ? std::string() : value.substr(1, end - 1);
  }
  if (kOfMore.find(value.front()) != std::string_view::npos) return {};
  return trimmed(std::string_view(value).substr(0, value.find(" #")));
}

// The scalars at the top level of a model card's metadata, which is YAML between two lines of
// "---".
std::map<std::string, std::string> card_metadata(const std::string& readme) {
  std::map<std::string, std::string> found;
  std::size_t at = 0;
  const auto next_line = [&]() -> std::optional<std::string_view> {
    if (at >= readme.size()) return std::nullopt;
    const std::size_t end = std::min(readme.find('\n', at), readme.size());
    const auto line = std::string_view(readme).substr(at, end - at);
    at = end + 1;
    return line;
  };
  auto line = next_line();
  if (!line || trimmed(*line) != "---") return found;
  while ((line = next_line()) && trimmed(*line) != "---") {
    const auto colon = line->find(':');
    if (colon == std::string_view::npos || line->starts_with(' ') || line->starts_with('-'))
      continue;
    found[std::string(line->substr(0, colon))] = scalar(trimmed(line->substr(colon + 1)));
  }
  return line ? found : std::map<std::string, std::string>();
}

std::string member(const Json& json, const char* key) {
  const auto found = json.find(key);
  return found != json.end() && found->is_string() ? found->get<std::string>() : std::string();
}

// For example "Qwen/Qwen3-0.6B", which is not a path.
bool is_name_on_hub(std::string_view text) {
  const auto is_plain = [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.' || c == '/';
  };
  const auto slash = text.find('/');
  return slash != std::string_view::npos && slash > 0 && slash + 1 < text.size() &&
         text.front() != '.' && text.find('/', slash + 1) == std::string_view::npos &&
         std::all_of(text.begin(), text.end(), is_plain);
}

// The key of current and earlier versions of transformers.
std::optional<DType> dtype_in(const Json& config) {
  for (const char* const key : {"dtype", "torch_dtype"}) {
    const std::string name = member(config, key);
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16})
      if (name == hugging_face_dtype(dtype)) return dtype;
  }
  return std::nullopt;
}

BaseModel described(aio::IoQueue& queue, const std::string& folder, const Json& config) {
  const std::filesystem::path absolute = absolute_folder(folder);
  const std::string said = member(config, "_name_or_path");
  // A fine-tune's file may still name its base model, which has other weights.
  const std::string plain = absolute.filename().string();
  const std::string own = is_name_on_hub(said) && said.ends_with("/" + plain) ? said : plain;
  const HubModel of_cache = model_in_hub_cache(absolute.string());
  BaseModel base{.name = of_cache.name.empty() ? own : of_cache.name,
                 .revision = of_cache.revision,
                 .folder = absolute.string()};
  base.dtype = dtype_in(config);
  if (auto model = read_hugging_face_config(config.dump()); model.ok())
    base.notes = std::move(model->notes);
  auto metadata = card_metadata(text_of(queue, folder + "/README.md"));
  base.license = metadata["license"];
  base.license_name = metadata["license_name"];
  base.license_link = metadata["license_link"];
  const std::string generation = text_of(queue, folder + "/" + std::string(kGenerationConfigName));
  if (json_or_discarded<Json>(generation).is_object()) base.generation_config = generation;
  return base;
}

}  // namespace

std::string absolute_folder(const std::string& folder) {
  std::error_code error;
  const auto absolute = std::filesystem::absolute(folder, error).lexically_normal();
  return (absolute.has_filename() ? absolute : absolute.parent_path()).string();
}

Result<BaseModel> base_model_of(aio::IoQueue& queue, const std::string& weights) {
  const std::string folder = folder_of_weights(queue, weights);
  for (const std::string& directory : {folder, run_directory_of(folder)}) {
    if (directory.empty()) continue;
    SLUICE_ASSIGN_OR_RETURN(BaseModel kept, kept_base_model(queue, directory));
    if (!kept.folder.empty()) return kept;
  }
  const Json config = json_or_discarded<Json>(text_of(queue, folder + "/config.json"));
  if (!config.is_object() || !config.contains("model_type")) return BaseModel();
  return described(queue, folder, config);
}

Status keep_base_model(aio::IoQueue& queue, const BaseModel& base, const std::string& directory) {
  if (base.folder.empty()) return {};
  const Json generation = json_or_discarded<Json>(base.generation_config);
  const Json json = {{"name", base.name},
                     {"revision", base.revision},
                     {"folder", base.folder},
                     {"license", base.license},
                     {"license_name", base.license_name},
                     {"license_link", base.license_link},
                     {"dtype", base.dtype ? Json(hugging_face_dtype(*base.dtype)) : Json()},
                     {"generation_config", generation.is_object() ? generation : Json()},
                     {"notes", base.notes}};
  return aio::write_small_file(queue, directory + "/" + std::string(kBaseModelName),
                               json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
}

Result<BaseModel> kept_base_model(aio::IoQueue& queue, const std::string& directory) {
  const std::string path = directory + "/" + std::string(kBaseModelName);
  SLUICE_ASSIGN_OR_RETURN(const bool there, queue.backend().files().exists(path));
  if (!there) return BaseModel();
  SLUICE_ASSIGN_OR_RETURN(const std::string text, aio::read_small_file(queue, path, kMostBytes));
  const Json json = json_or_discarded<Json>(text);
  if (!json.is_object() || member(json, "folder").empty())
    return Error(ErrorCode::kCorrupt,
                 path +
                     " does not say which model the run started from: restore it, or remove it and "
                     "the model card will not name the base model");
  const Json generation = json.value("generation_config", Json());
  BaseModel base{.name = member(json, "name"),
                 .revision = member(json, "revision"),
                 .folder = member(json, "folder"),
                 .license = member(json, "license"),
                 .license_name = member(json, "license_name"),
                 .license_link = member(json, "license_link"),
                 .generation_config = generation.is_object() ? generation.dump() : "",
                 .dtype = dtype_in(json)};
  for (const Json& note : json.value("notes", Json::array()))
    if (note.is_string()) base.notes.push_back(note.get<std::string>());
  if (json.contains("dtype")) return base;
  // Runs of earlier versions did not store it; their base may still exist.
  const Json config = json_or_discarded<Json>(text_of(queue, base.folder + "/config.json"));
  if (config.is_object()) base.dtype = dtype_in(config);
  return base;
}

Result<BaseModel> base_model_of_run(aio::IoQueue& queue, const std::string& directory,
                                    const std::string& weights) {
  if (!directory.empty()) {
    SLUICE_ASSIGN_OR_RETURN(BaseModel kept, kept_base_model(queue, directory));
    if (!kept.folder.empty()) return kept;
  }
  return weights.empty() ? BaseModel() : base_model_of(queue, weights);
}

}  // namespace sluice::engine
