#include "tools/session/config_options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <span>
#include <string_view>
#include <system_error>
#include <utility>

#include "aio/log.h"
#include "aio/real_file_system.h"
#include "engine/config/nearest_key.h"
#include "engine/config/stored_config.h"
#include "engine/exchange/adapter_weights.h"
#include "engine/exchange/described_model.h"
#include "engine/families/families.h"
#include "tools/session/hub_model.h"
#include "tools/session/open_queue.h"
#include "tools/support/value_hints.h"

#ifdef SLUICE_HAS_ENGINE
#include "engine/run/config_facts.h"
#endif

namespace sluice::tools {

void add_config_options(CLI::App& command, ConfigOptions& options) {
  command.add_option("CONFIG", options.file,
                     "The run's JSON file; configs/ has examples. Relative paths in it start at "
                     "the working folder, and those in a run's DIR/config.json at DIR");
  add_override_options(command, options);
}

void add_override_options(CLI::App& command, ConfigOptions& options) {
  command.add_option(
      "--deepspeed", options.deepspeed,
      "A DeepSpeed configuration, unchanged; its keys override those of the run file");
  command
      .add_option("--set", options.overrides,
                  "Overrides one key: --set run.steps=100; may be repeated")
      ->check(configuration_key())
      ->allow_extra_args(false);
  if (const CLI::App* const program = command.get_parent(); program != nullptr)
    options.io_watchdog = program->get_option_no_throw("--io-watchdog");
}

std::vector<std::string> overrides_of(const ConfigOptions& options) {
  std::vector<std::string> overrides = options.overrides;
  if (options.io_watchdog != nullptr && options.io_watchdog->count() > 0)
    overrides.push_back("run.io_watchdog=" + options.io_watchdog->results().back());
  return overrides;
}

Result<std::string> run_directory_of(const ConfigOptions& options) {
  const std::filesystem::path file(options.file);
  if (file.filename() != "config.json") return std::string();
  const std::string folder = file.has_parent_path() ? file.parent_path().string() : ".";
  aio::RealFileSystem files;
  for (const char* const name : {"/lock", "/metrics.jsonl", "/checkpoints"}) {
    SLUICE_ASSIGN_OR_RETURN(const bool there, files.exists(folder + name));
    if (there) return folder;
  }
  return std::string();
}

// Looks up the facts of the model in model.path, and the folders of models on the hub. Other
// mistakes are reported when the sources are resolved.
Status look_up_model_facts(HubFiles files, config::Sources& sources) {
  config::Sources asking = sources;
  asking.leaves_folders_open = true;
  const auto resolved = config::resolve(asking);
  if (!resolved.ok()) return {};
  const config::Model& model = resolved->config.model;
  for (const auto& [key, name] :
       {std::pair("model.path", model.path), std::pair("model.init_from", model.init_from)}) {
    if (sources.facts.hub_folders.contains(name)) continue;
    auto found = model_folder(name, files);
    if (!found.ok()) return std::move(found).error().with_context(key);
    if (*found != name) sources.facts.hub_folders[name] = *std::move(found);
  }
  if (!resolved->missing_facts.model) return {};
  const auto on_hub = sources.facts.hub_folders.find(model.path);
  const std::string& folder =
      on_hub == sources.facts.hub_folders.end() ? model.path : on_hub->second;
  auto read = config::read_source(folder + "/config.json");
  if (!read.ok() && read.error().code() == ErrorCode::kNotFound) {
    aio::RealFileSystem files;
    SLUICE_ASSIGN_OR_RETURN(const bool adapter, files.exists(folder + "/adapter_config.json"));
    return Error(
        ErrorCode::kNotFound,
        "model.path: there is no " + folder +
            "/config.json: name the folder of a model as transformers' save_pretrained() writes "
            "it" +
            engine::download_hint(folder) +
            (adapter ? ", and this folder, which contains an adapter, as recipe.lora.adapter"
                     : ""));
  }
  if (!read.ok()) return std::move(read).error().with_context("model.path");
  sources.facts.model = *std::move(read);
  return {};
}

// Looks up the recipe of the adapters in recipe.lora.adapter.
Status look_up_adapter_facts(config::Sources& sources) {
  config::Sources asking = sources;
  asking.leaves_folders_open = true;
  const auto resolved = config::resolve(asking);
  if (!resolved.ok() || !resolved->missing_facts.adapter) return {};
  constexpr const char* kKey = "recipe.lora.adapter";
  const auto read = config::read_source(resolved->config.lora.adapter + "/" +
                                        std::string(engine::kPeftConfigName));
  if (!read.ok() && read.error().code() == ErrorCode::kNotFound) {
    // A resumed run does not need it; a new run is refused later.
    if (resolved->config.lora.rank > 0) return {};
    return engine::no_adapter(resolved->config.lora.adapter).with_context(kKey);
  }
  if (!read.ok()) return Error(read.error()).with_context(kKey);
  auto adapter = engine::parse_peft_config(read->text);
  if (!adapter.ok()) return std::move(adapter).error().with_context(read->name).with_context(kKey);
  const engine::ModelFamily* const family = engine::find_family(resolved->config.model.family);
  const auto known = family == nullptr ? std::span<const std::string_view>()
                                       : family->adapter_targets(resolved->config.model.shape());
  std::vector<std::string>& targets = adapter->recipe.targets;
  const bool are_plain = std::all_of(targets.begin(), targets.end(), [&](const auto& target) {
    return std::find(known.begin(), known.end(), target) != known.end();
  });
  if (!are_plain) targets.clear();
  // A pattern, or longer names. Read errors are reported when the adapter is opened.
  if (targets.empty() && family != nullptr) {
    aio::IoWatchdog watchdog{aio::IoWatchdog::Options{}};
    SLUICE_ASSIGN_OR_RETURN(const FileQueue files, open_queue(watchdog));
    auto there = engine::adapter_targets_in(*files.queue, resolved->config.lora.adapter, known);
    if (there.ok()) targets = *std::move(there);
  }
  sources.facts.adapter = adapter->recipe;
  return {};
}

// Keeps letters and digits.
std::string plain_name(std::string_view text) {
  std::string name;
  for (const char c : text)
    if (std::isalnum(static_cast<unsigned char>(c)) != 0)
      name += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return name;
}

// The preset that a model's name begins with, as for "Qwen3-8B-Instruct"; empty: none.
std::string preset_of(const std::string& model) {
  std::filesystem::path path = model;
  if (!path.has_filename()) path = path.parent_path();
  std::string name = plain_name(path.filename().string());
  if (name.starts_with("meta")) name.erase(0, std::string_view("meta").size());
  std::string_view found;
  for (const engine::NamedShape& it : engine::model_presets())
    if (name.starts_with(plain_name(it.name)) && it.name.size() > found.size()) found = it.name;
  return std::string(found);
}

// "run.json", but not "Llama-3.1-8B".
bool has_file_ending(const std::filesystem::path& path) {
  const std::string ending = path.extension().string();
  return ending.size() > 1 && std::isalpha(static_cast<unsigned char>(ending[1])) != 0;
}

// The preset that the user means by a preset's name or a published model's OWNER/NAME. Empty if
// `name` looks like a file, whose path may be wrong.
std::string preset_meant_by(const std::string& name) {
  const std::filesystem::path path = name;
  if (has_file_ending(path)) return "";
  const std::string preset = preset_of(name);
  if (!path.has_parent_path()) return plain_name(name) == plain_name(preset) ? preset : "";
  const std::filesystem::path owner = path.parent_path();
  std::error_code error;
  const bool is_owner = path.is_relative() && !owner.has_parent_path() && path.has_filename() &&
                        !std::filesystem::exists(owner, error);
  return is_owner ? preset : "";
}

// A plan needs only the shape of a model, not its folder, so a preset of the same name suffices.
void take_preset_for_absent_model(config::Sources& sources) {
  config::Sources asking = sources;
  asking.leaves_folders_open = true;
  const auto resolved = config::resolve(asking);
  if (!resolved.ok() || !resolved->missing_facts.model) return;
  const std::string& folder = resolved->config.model.path;
  std::error_code error;
  if (std::filesystem::exists(folder + "/config.json", error)) return;
  const std::string preset = preset_of(folder);
  if (preset.empty()) return;
  log::info(folder + " does not exist: using the shape of model.preset " + preset);
  sources.overrides.emplace_back("model.path=");
  sources.overrides.emplace_back("model.preset=" + preset);
}

Status answer_folders(LookAtData data, config::Sources& sources) {
  // What only shows or plans a run reads no weights.
  const HubFiles files = data == LookAtData::kIfItOpens ? HubFiles::kConfig : HubFiles::kModel;
  SLUICE_RETURN_IF_ERROR(look_up_model_facts(files, sources));
  return look_up_adapter_facts(sources);
}

#ifdef SLUICE_HAS_ENGINE
Status look_up_facts(LookAtData data, config::Sources& sources) {
  SLUICE_RETURN_IF_ERROR(answer_folders(data, sources));
  SLUICE_ASSIGN_OR_RETURN(const config::Resolved resolved, config::resolve(sources));
  if (resolved.missing_facts.gpu) sources.facts.gpu = engine::gpu_kind(resolved.config);
  if (!resolved.missing_facts.samples_per_epoch || data == LookAtData::kNo) return {};
  const auto samples = engine::samples_per_epoch(resolved.config);
  if (samples.ok())
    sources.facts.samples_per_epoch = *samples;
  else if (data == LookAtData::kYes)
    return samples.error();
  return {};
}
#else
Status look_up_facts(LookAtData data, config::Sources& sources) {
  return answer_folders(data, sources);
}
#endif

namespace {

// Why a run file was not read. The user may be in another folder, or mean a model or a run.
Error no_run_file(Error error, const std::string& name) {
  std::error_code ignored;
  const std::filesystem::path file = name;
  if (std::filesystem::is_directory(file, ignored))
    return Error(ErrorCode::kInvalidArgument,
                 name +
                     " is a folder: name a run file, such as configs/demo.json or the "
                     "config.json of a run");
  if (error.code() != ErrorCode::kNotFound) return error;
  std::string presets;
  for (const engine::NamedShape& it : engine::model_presets())
    presets += (presets.empty() ? "" : "|") + std::string(it.name);
  const std::string preset = config::nearest_choice(name, presets);
  const std::string here = std::filesystem::current_path(ignored).string();
  return Error(
      ErrorCode::kNotFound,
      "there is no " + name + (file.is_relative() ? " in the folder " + here : "") +
          ": name a run file, such as configs/demo.json" +
          (preset.empty() ? "" : "; sluice plan takes a model's name too, such as " + preset));
}

}  // namespace

Result<config::Sources> sources_of(const ConfigOptions& options, LookAtData data) {
  if (options.file.empty() && options.text.empty() && options.deepspeed.empty()) {
    return Error(ErrorCode::kInvalidArgument,
                 "no configuration was given: name a run file (such as configs/demo.json), or a "
                 "DeepSpeed file with --deepspeed");
  }
  config::Sources sources;
  if (!options.file.empty()) {
    auto read = config::read_source(options.file);
    if (!read.ok())
      return no_run_file(std::move(read).error(), options.file).with_context("CONFIG");
    SLUICE_ASSIGN_OR_RETURN(const std::string run, run_directory_of(options));
    sources.run_file =
        run.empty() ? *std::move(read) : config::in_run_folder(*std::move(read), run);
  }
  if (!options.text.empty()) sources.run_file = config::Source{"the configuration", options.text};
  if (!options.deepspeed.empty()) {
    auto read = config::read_source(options.deepspeed);
    if (!read.ok()) return std::move(read).error().with_context("--deepspeed");
    sources.deepspeed = *std::move(read);
  }
  sources.overrides = overrides_of(options);
  sources.world_size = options.world_size;
  sources.facts.means_default_model = true;
  if (options.needs_shape_only) take_preset_for_absent_model(sources);
  SLUICE_RETURN_IF_ERROR(look_up_facts(data, sources));
  return sources;
}

bool take_model_as_config(ConfigOptions& options, bool with_drive) {
  if (options.file.empty()) return false;
  std::error_code error;
  const std::filesystem::path path = options.file;
  const bool is_folder = std::filesystem::is_directory(path, error);
  const bool has_model = is_folder && std::filesystem::exists(path / "config.json", error);
  const std::string preset = preset_meant_by(options.file);
  const bool is_on_hub = preset.empty() && engine::is_hub_name(options.file);
  if (std::filesystem::exists(path, error) ? !has_model : preset.empty() && !is_on_hub)
    return false;
  const auto shape = engine::preset_shape(preset);
  constexpr std::int64_t kTokens = 2048;
  const std::int64_t context = shape && !has_model ? shape->context_tokens : kTokens;
  nlohmann::json run = {{"train_micro_batch_size_per_gpu", 2},
                        {"gradient_accumulation_steps", 8},
                        {"bf16", {{"enabled", true}}},
                        {"zero_optimization",
                         {{"stage", 3},
                          {"offload_param", {{"device", "auto"}}},
                          {"offload_optimizer", {{"device", "auto"}}}}},
                        {"data", {{"sequence_length", std::min(context, kTokens)}}},
                        {"run", {{"epochs", 1}}}};
  if (with_drive) run["budget"] = {{"nvme_paths", nlohmann::json::array({"nvme"})}};
  if (has_model || is_on_hub)
    run["model"] = {{"path", options.file}};
  else
    run["model"] = {{"preset", preset}};
  options.text = run.dump();
  options.file.clear();
  return true;
}

Result<config::Resolved> resolve_for_probe(const ConfigOptions& options) {
  config::Sources sources;
  sources.overrides = {"model.preset=gpt2-small", "bf16.enabled=true",
                       "train_micro_batch_size_per_gpu=1"};
  for (const std::string& override : overrides_of(options)) sources.overrides.push_back(override);
  SLUICE_RETURN_IF_ERROR(look_up_facts(LookAtData::kNo, sources));
  return config::resolve(sources);
}

Result<config::Resolved> resolve(const ConfigOptions& options, LookAtData data) {
  SLUICE_ASSIGN_OR_RETURN(const config::Sources sources, sources_of(options, data));
  return config::resolve(sources);
}

}  // namespace sluice::tools
