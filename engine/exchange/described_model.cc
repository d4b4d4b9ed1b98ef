#include "engine/exchange/described_model.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <filesystem>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <string_view>
#include <system_error>
#include <utility>

#include "aio/bounded_json.h"
#include "aio/small_file.h"
#include "engine/checkpoint/checkpoint_manifest.h"
#include "engine/checkpoint/checkpoint_names.h"
#include "engine/exchange/adapter_weights.h"
#include "engine/exchange/stored_shape.h"
#include "engine/families/families.h"

namespace sluice::engine {
namespace {

// Owners on the hub by model name, and folder names that are not models' names; as in
// tools/corpus/tokenizer_folder.py.
constexpr std::array<std::pair<std::string_view, const char*>, 5> kOwners = {
    {{"qwen", "Qwen"},
     {"llama", "meta-llama"},
     {"mistral", "mistralai"},
     {"ministral", "mistralai"},
     {"gpt2", "openai-community"}}};
constexpr std::array<std::string_view, 9> kPlainFolders = {
    "models", "model", "base", "weights", "checkpoints", "hf", "data", "out", "runs"};

using Json = nlohmann::json;

using Names = std::map<std::string, std::string>;  // our key -> the file's

// What a file says about a shape, by our keys.
struct Said {
  std::map<std::string, std::int64_t> sizes;  // stored_model()
  std::map<std::string, double> numbers;      // ModelShape::numbers
  std::map<std::string, std::vector<double>> lists = {};
};

// The names of the keys in configurations and in stored runs.
Names run_names(const ModelShape& shape) {
  Names names;
  for (const auto& [key, value] : stored_model(shape)) names[key] = "model." + key;
  for (const auto& [key, value] : shape.numbers) names[key] = "model." + key;
  for (const auto& [key, values] : shape.lists) names[key] = "model." + key;
  return names;
}

// A file with any of these keys belongs to a transformers model, even if it does not name the type.
bool describes_model(const Json& json) {
  constexpr const char* kKeys[] = {"model_type", "architectures",       "n_layer",
                                   "n_embd",     "activation_function", "layer_norm_epsilon"};
  return std::any_of(std::begin(kKeys), std::end(kKeys),
                     [&](const char* key) { return json.contains(key); });
}

// Compares what the file says. A number without a name of its own there appears under our name.
template <typename Number, typename Text>
void add_differences(const std::map<std::string, Number>& said, const Names& names,
                     const std::map<std::string, Number>& wanted, const Text& text,
                     std::string& differences) {
  for (const auto& [key, mine] : wanted) {
    const auto found = said.find(key);
    if (found == said.end() || found->second == mine) continue;
    const auto name = names.find(key);
    differences += (differences.empty() ? "" : "; ") + (name == names.end() ? key : name->second) +
                   " is " + text(key, found->second) + " there, and " + text(key, mine) +
                   " in the configuration (model." + key + ")";
  }
}

Status compare(const std::string& path, Said said, const Names& names, const ModelShape& given) {
  ModelShape wanted = complete(given);
  // How a router is trained says nothing about weights.
  wanted.numbers.erase(std::string(kBalanceCoefficient));
  const auto context = said.sizes.find("context");
  if (context != said.sizes.end() && context->second < wanted.context_tokens &&
      !has_learned_positions(wanted))
    said.sizes.erase(context);
  std::string differences;
  const auto size = [](const std::string& /*key*/, std::int64_t value) {
    return std::to_string(value);
  };
  const auto number = [&](const std::string& key, double value) {
    return family_number_text(wanted.family, key, value);
  };
  add_differences(said.sizes, names, stored_model(wanted), size, differences);
  add_differences(said.numbers, names, wanted.numbers, number, differences);
  const auto list = [](const std::string& /*key*/, const std::vector<double>& values) {
    return list_text(values);
  };
  add_differences(said.lists, names, wanted.lists, list, differences);
  if (differences.empty()) return {};
  return Error(ErrorCode::kInvalidArgument,
               path + " and the configuration describe different models: " + differences);
}

Status check_family(const std::string& path, const std::string& said, const ModelShape& wanted) {
  if (said == wanted.family) return {};
  return Error(ErrorCode::kInvalidArgument,
               path + " describes a model of the family " + said +
                   ", but the configuration describes one of the family " + wanted.family +
                   " (model.family)");
}

Status check_manifest(aio::IoQueue& queue, const std::string& folder, const ModelShape& wanted) {
  SLUICE_ASSIGN_OR_RETURN(const CheckpointManifest manifest,
                          read_checkpoint_manifest(queue, folder));
  const std::string path = folder + "/" + std::string(kManifestName);
  if (manifest.state.run.adapters)
    return Error(
        ErrorCode::kInvalidArgument,
        folder +
            " contains adapters, not the weights of a model: name its base model, merge the "
            "adapters (sluice export --merged), or give the folder to sluice eval as --adapter");
  SLUICE_RETURN_IF_ERROR(check_family(path, manifest.state.run.family, wanted));
  const StoredRun run = complete(manifest.state.run);
  return compare(path,
                 {.sizes = run.model, .numbers = run.family_numbers, .lists = run.family_lists},
                 run_names(wanted), wanted);
}

// A run's own file, resolved: it has every number of the shape.
Status check_run_file(const std::string& path, const Json& model, const ModelShape& wanted) {
  // Missing keys come from the preset: the family, and numbers added in later versions.
  const Json preset = model.value("preset", Json());
  ModelShape shape =
      preset_shape(preset.is_string() ? preset.get<std::string>() : "").value_or(ModelShape{});
  const Json family = model.value("family", Json());
  if (family.is_string() && family != "auto") shape.family = family.get<std::string>();
  SLUICE_RETURN_IF_ERROR(check_family(path, shape.family, wanted));
  Said said{.sizes = {}, .numbers = complete(shape).numbers, .lists = shape.lists};
  for (const char* const key : {"layers", "hidden", "heads", "context", "vocab"}) {
    const Json value = model.value(key, Json());
    if (value.is_number_integer()) said.sizes[key] = value.get<std::int64_t>();
  }
  for (const ShapeNumber& number : family_of(shape).numbers()) {
    const std::string name(number.name());
    const Json value = model.value(name, Json());
    if (value.is_number()) said.numbers[name] = value.get<double>();
    if (value.is_boolean()) said.numbers[name] = value.get<bool>() ? 1 : 0;
    if (!value.is_string()) continue;
    if (const auto place = number.place(value.get<std::string>())) said.numbers[name] = *place;
  }
  for (const ShapeList& list : family_of(shape).lists()) {
    const std::string name(list.name());
    const Json value = model.value(name, Json());
    const auto is_number = [](const Json& one) { return one.is_number(); };
    if (value.is_array() && std::all_of(value.begin(), value.end(), is_number))
      said.lists[name] = value.get<std::vector<double>>();
  }
  const auto size = [&](const char* key) {
    const auto found = said.sizes.find(key);
    return found == said.sizes.end() ? 0 : found->second;
  };
  said.numbers = complete({.hidden = size("hidden"),
                           .heads = size("heads"),
                           .context_tokens = size("context"),
                           .family = shape.family,
                           .numbers = std::move(said.numbers)})
                     .numbers;
  return compare(path, said, run_names(wanted), wanted);
}

}  // namespace

std::string folder_of_weights(aio::IoQueue& queue, const std::string& weights) {
  if (queue.backend().files().list(weights).ok()) return weights;
  const std::size_t slash = weights.rfind('/');
  return slash == std::string::npos ? "." : weights.substr(0, slash);
}

bool is_hub_name(const std::string& text) {
  const auto is_plain = [](std::string_view part) {
    return !part.empty() && std::isalnum(static_cast<unsigned char>(part.front())) != 0 &&
           std::all_of(part.begin(), part.end(), [](unsigned char c) {
             return std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.';
           });
  };
  const std::size_t slash = text.find('/');
  if (slash == std::string::npos) return false;
  const std::string owner = text.substr(0, slash);
  const std::size_t at = std::min(text.find('@', slash), text.size());
  const std::string name = text.substr(slash + 1, at - slash - 1);
  if (!is_plain(owner) || !is_plain(name) || at + 1 == text.size()) return false;
  for (const char* const ending : {".safetensors", ".json", ".bin"})
    if (name.ends_with(ending)) return false;
  if (std::find(kPlainFolders.begin(), kPlainFolders.end(), owner) != kPlainFolders.end())
    return false;
  std::error_code error;
  return !std::filesystem::exists(owner, error) && !error;
}

HubModel model_in_hub_cache(const std::string& folder) {
  constexpr std::string_view kPrefix = "models--";
  constexpr std::string_view kBetween = "--";
  const std::filesystem::path path = folder;
  for (const auto& part : path) {
    HubModel model{.name = part.string()};
    if (!model.name.starts_with(kPrefix)) continue;
    model.name.erase(0, kPrefix.size());
    const auto between = model.name.find(kBetween);
    if (between != std::string::npos) model.name.replace(between, kBetween.size(), "/");
    if (path.parent_path().filename() == "snapshots") model.revision = path.filename().string();
    return model;
  }
  return {};
}

std::string absent_model(const std::string& folder) {
  std::error_code error;
  // A folder without read permission may exist.
  if (std::filesystem::exists(folder, error) || error) return "";
  if (folder.ends_with(".safetensors") || folder.ends_with(".json")) return "";
  std::filesystem::path path = folder;
  if (!path.has_filename()) path = path.parent_path();
  const std::string name = path.filename().string();
  std::string lower = name;
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  std::string owner = "OWNER";
  for (const auto& [word, it] : kOwners)
    if (lower.starts_with(word)) owner = it;
  const std::string parent = path.parent_path().string();
  const bool is_plain =
      std::find(kPlainFolders.begin(), kPlainFolders.end(), parent) != kPlainFolders.end();
  if (!parent.empty() && parent.find('/') == std::string::npos && parent.front() != '.' &&
      !is_plain)
    owner = parent;
  const bool is_found_by_name = owner != "OWNER" && !std::filesystem::exists(owner, error);
  return path.string() + " does not exist: hf download " + owner + "/" + name + " --local-dir " +
         path.string() + " downloads the model" +
         (is_found_by_name ? ", and so does its name on the hub, " + owner + "/" + name : "") +
         ". Or name the folder that contains it";
}

std::string download_hint(const std::string& folder) {
  const std::string sentence = absent_model(folder);
  return sentence.empty() ? "" : ". " + sentence;
}

Status check_described_model(aio::IoQueue& queue, const std::string& weights,
                             const ModelShape& wanted) {
  aio::FileSystem& files = queue.backend().files();
  const std::string folder = folder_of_weights(queue, weights);
  SLUICE_ASSIGN_OR_RETURN(const bool is_checkpoint,
                          files.exists(folder + "/" + std::string(kManifestName)));
  if (is_checkpoint) return check_manifest(queue, folder, wanted);
  if (folder == weights) SLUICE_RETURN_IF_ERROR(check_is_no_adapter(files, folder));
  const std::string path = folder + "/config.json";
  SLUICE_ASSIGN_OR_RETURN(const bool described, files.exists(path));
  if (!described) return {};
  SLUICE_ASSIGN_OR_RETURN(const std::string text,
                          aio::read_small_file(queue, path, kMaxModelConfigBytes));
  const Json json = json_or_discarded<Json>(text);
  const Json model = json.is_object() ? json.value("model", Json()) : Json();
  const bool of_model = json.is_object() && describes_model(json);
  if (model.is_object() && !of_model) return check_run_file(path, model, wanted);
  // Weights may be in a folder of many things: a config.json that is not a model's says nothing.
  if (json.is_object() && !of_model && folder != weights) return {};
  auto config = read_hugging_face_config(text);
  if (!config.ok()) return std::move(config).error().with_context(path);
  SLUICE_RETURN_IF_ERROR(check_family(path, config->shape.family, wanted));
  return compare(path,
                 {.sizes = stored_model(config->shape),
                  .numbers = config->shape.numbers,
                  .lists = config->shape.lists},
                 family_of(wanted).config_keys(), wanted);
}

}  // namespace sluice::engine
