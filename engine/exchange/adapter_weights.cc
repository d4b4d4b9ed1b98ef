#include "engine/exchange/adapter_weights.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>
#include <vector>

#include "aio/small_file.h"
#include "engine/exchange/stored_shape.h"
#include "engine/families/families.h"

namespace sluice::engine {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kPrefix = "base_model.model.";  // PEFT's, before the model's own names
constexpr std::string_view kInfixA = ".lora_A.";
constexpr std::string_view kInfixB = ".lora_B.";
constexpr std::uint64_t kMaxConfigBytes = 1 << 20;
constexpr int kMostDepth = 8;  // of a file that PEFT wrote; writing out what is deep recurses
constexpr std::size_t kMostShown = 80;

Error corrupt(std::string what) { return Error(ErrorCode::kCorrupt, std::move(what)); }
Error unknown(std::string what) { return Error(ErrorCode::kInvalidArgument, std::move(what)); }

// Whether PEFT takes it for "not used".
bool is_off(const Json& value) {
  return value.is_null() || value == Json(false) || (value.is_structured() && value.empty()) ||
         value == Json("");
}

std::string shown(const Json& value) {
  const std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  return text.size() <= kMostShown ? text : text.substr(0, kMostShown) + "...";
}

// What is read here, and what says nothing about what adapters compute. Any other key that is used
// is a variant that Sluice does not have.
constexpr std::string_view kKnown[] = {"auto_mapping",
                                       "base_model_name_or_path",
                                       "bias",
                                       "corda_config",
                                       "ensure_weight_tying",
                                       "eva_config",
                                       "inference_mode",
                                       "init_lora_weights",
                                       "layers_pattern",
                                       "loftq_config",
                                       "lora_alpha",
                                       "lora_dropout",
                                       "lora_ga_config",
                                       "megatron_core",
                                       "peft_type",
                                       "peft_version",
                                       "qalora_group_size",
                                       "r",
                                       "revision",
                                       "runtime_config",
                                       "target_modules",
                                       "task_type",
                                       "use_rslora"};
Status check_known(const Json& json) {
  const Json type = json.value("peft_type", Json());
  if (type != Json("LORA"))
    return unknown("peft_type is " + shown(type) + ", and Sluice has \"LORA\" alone");
  for (const auto& [key, value] : json.items()) {
    if (std::find(std::begin(kKnown), std::end(kKnown), key) != std::end(kKnown) || is_off(value))
      continue;
    return unknown(key + " is " + shown(value) +
                   ", which Sluice does not compute: train or convert the adapter without it");
  }
  const Json bias = json.value("bias", Json("none"));
  if (bias != Json("none"))
    return unknown("bias is " + shown(bias) + ", and Sluice trains no biases beside adapters");
  // These start from a changed base, to which the saved adapter belongs.
  const Json begun = json.value("init_lora_weights", Json(true));
  if (begun.is_string() && begun != Json("gaussian") && begun != Json("eva") &&
      begun != Json("orthogonal"))
    return unknown("init_lora_weights is " + shown(begun) +
                   ", which changes the base model: convert the adapter to a plain one (PEFT's "
                   "path_initial_model_for_weight_conversion)");
  return {};
}

Result<double> number_of(const Json& json, const char* key, double usual) {
  const Json value = json.value(key, Json(usual));
  if (!value.is_number()) return corrupt(std::string(key) + " is " + shown(value) + ", no number");
  return value.get<double>();
}

std::vector<std::string> targets_of(const Json& json) {
  std::vector<std::string> targets;
  const Json value = json.value("target_modules", Json());
  if (!value.is_array()) return targets;
  for (const Json& target : value)
    if (target.is_string()) targets.push_back(target.get<std::string>());
  return targets;
}

// "q_proj" of "layers.0.self_attn.q_proj.lora_A.weight"; empty: it is no adapter's.
std::string target_in(std::string_view name) {
  for (const std::string_view infix : {kInfixA, kInfixB}) {
    const std::size_t end = name.find(infix);
    if (end == std::string_view::npos) continue;
    const std::size_t dot = name.rfind('.', end - 1);
    return std::string(name.substr(dot == std::string_view::npos ? 0 : dot + 1,
                                   end - (dot == std::string_view::npos ? 0 : dot + 1)));
  }
  return {};
}

// Those that any tensor has, in the family's order.
Result<std::vector<std::string>> targets_in(std::span<const TensorInfo> tensors,
                                            const ModelFamily& family) {
  std::set<std::string> found;
  for (const TensorInfo& tensor : tensors) {
    const std::string target = target_in(tensor.name);
    const auto known = family.adapter_targets();
    if (target.empty() || std::find(known.begin(), known.end(), target) == known.end())
      return unknown("it has a tensor " + tensor.name +
                     ", which is no adapter of this model's products");
    found.insert(target);
  }
  std::vector<std::string> targets;
  for (const std::string_view target : family.adapter_targets())
    if (found.contains(std::string(target))) targets.emplace_back(target);
  return targets;
}

std::string shape_text(const std::vector<std::uint64_t>& shape) {
  std::string text;
  for (const std::uint64_t size : shape) text += (text.empty() ? "" : " x ") + std::to_string(size);
  return text;
}

std::string list_of(const std::vector<std::string>& items) {
  std::string text;
  for (const std::string& item : items) text += (text.empty() ? "" : ", ") + item;
  return text;
}

// `found`: null where the file has no such tensor.
Status check_tensor(const TensorInfo* found, const TensorSpec& wanted, const std::string& name) {
  if (found == nullptr) return unknown("it has no tensor " + name);
  if (found->shape != wanted.shape)
    return unknown(name + " is " + shape_text(found->shape) +
                   ", and beside this model it would be " + shape_text(wanted.shape));
  if (!is_weight_dtype(found->dtype))
    return unknown(name + " is " + std::string(to_string(found->dtype)) +
                   ", and adapters are F32, BF16, F16 or F64");
  return {};
}

// Where the file lists them: PEFT would leave out the adapters of others.
Status check_targets(const std::string& path, const std::vector<std::string>& listed,
                     const std::vector<std::string>& found) {
  const std::set<std::string> one(listed.begin(), listed.end());
  const std::set<std::string> other(found.begin(), found.end());
  if (listed.empty() || one == other) return {};
  return unknown(path + ": target_modules is [" + list_of(listed) +
                 "], and the adapters beside it are of [" + list_of(found) + "]");
}

Status check_recipe(const LoraRecipe& there, const LoraRecipe& wanted) {
  std::string differences;
  const auto add = [&](const std::string& key, const std::string& is, const std::string& asked) {
    if (is == asked) return;
    differences +=
        (differences.empty() ? "" : "; ") + key + " is " + asked + ", and the adapter's is " + is;
  };
  add("recipe.lora.rank", std::to_string(there.rank), std::to_string(wanted.rank));
  add("recipe.lora.alpha", Json(there.alpha).dump(), Json(wanted.alpha).dump());
  add("recipe.lora.rank_stabilised", there.rank_stabilised ? "true" : "false",
      wanted.rank_stabilised ? "true" : "false");
  add("recipe.lora.targets", "[" + list_of(there.targets) + "]",
      "[" + list_of(wanted.targets) + "]");
  if (differences.empty()) return {};
  return unknown("it is of another recipe than the configuration: " + differences);
}

}  // namespace

Result<PeftConfig> parse_peft_config(std::string_view text) {
  const auto shallow = [](int depth, Json::parse_event_t, const Json&) {
    return depth <= kMostDepth;
  };
  const Json json = Json::parse(text, shallow, /*allow_exceptions=*/false);
  if (!json.is_object()) return corrupt("it is not a JSON object");
  SLUICE_RETURN_IF_ERROR(check_known(json));
  PeftConfig config{.recipe = {.targets = targets_of(json)}};
  const Json rank = json.value("r", Json(8));
  if (!rank.is_number_integer() || rank.get<std::int64_t>() < 1 ||
      rank.get<std::int64_t>() > kMostAdapterRank)
    return corrupt("r is " + shown(rank) + ", which is no rank");
  config.recipe.rank = rank.get<std::int64_t>();
  SLUICE_ASSIGN_OR_RETURN(config.recipe.alpha, number_of(json, "lora_alpha", 8));
  SLUICE_ASSIGN_OR_RETURN(config.dropout, number_of(json, "lora_dropout", 0));
  const Json stabilised = json.value("use_rslora", Json(false));
  if (!stabilised.is_boolean())
    return corrupt("use_rslora is " + shown(stabilised) + ", and not true or false");
  config.recipe.rank_stabilised = stabilised.get<bool>();
  const Json base = json.value("base_model_name_or_path", Json());
  if (base.is_string()) config.base = base.get<std::string>();
  return config;
}

std::string peft_config_text(const PeftConfig& config) {
  const nlohmann::ordered_json json = {
      {"peft_type", "LORA"},
      {"task_type", "CAUSAL_LM"},
      {"base_model_name_or_path", config.base.empty() ? Json() : Json(config.base)},
      {"r", config.recipe.rank},
      {"lora_alpha", config.recipe.alpha},
      {"lora_dropout", 0.0},
      {"use_rslora", config.recipe.rank_stabilised},
      {"target_modules", config.recipe.targets},
      {"bias", "none"},
      {"fan_in_fan_out", false},
      {"inference_mode", true},
      {"init_lora_weights", true},
      {"modules_to_save", nullptr}};
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string peft_name(const ModelShape& shape, const std::string& parameter) {
  return std::string(kPrefix) + family_of(shape).parameter_names(shape).exported(parameter);
}

Result<AdapterWeights> AdapterWeights::open(aio::IoQueue& queue, const std::string& folder,
                                            const ModelShape& shape) {
  AdapterWeights adapters;
  const std::string config_path = folder + "/" + std::string(kPeftConfigName);
  const auto text = aio::read_small_file(queue, config_path, kMaxConfigBytes);
  if (!text.ok() && text.error().code() == ErrorCode::kNotFound)
    return Error(ErrorCode::kNotFound,
                 "there is no " + config_path +
                     ": name the folder of an adapter as PEFT's save_pretrained() leaves it");
  if (!text.ok()) return text.error();
  auto config = parse_peft_config(*text);
  if (!config.ok()) return std::move(config).error().with_context(config_path);
  adapters.config_ = *std::move(config);
  const std::string path = folder + "/" + std::string(kPeftWeightsName);
  SLUICE_ASSIGN_OR_RETURN(const bool there, queue.backend().files().exists(path));
  if (!there)
    return Error(ErrorCode::kNotFound, "there is no " + path +
                                           ": adapters are read as safetensors (PEFT's "
                                           "save_pretrained(safe_serialization=True))");
  SLUICE_ASSIGN_OR_RETURN(adapters.reader_, SafetensorsReader::open(queue, path));
  auto targets = targets_in(adapters.reader_->tensors(), family_of(shape));
  if (!targets.ok()) return std::move(targets).error().with_context(path);
  LoraRecipe& recipe = adapters.config_.recipe;
  if (targets->empty()) return corrupt(path + " holds no adapters");
  SLUICE_RETURN_IF_ERROR(check_targets(config_path, recipe.targets, *targets));
  recipe.targets = *std::move(targets);
  const Status valid = validate(recipe, shape);
  if (!valid.ok()) return Error(valid.error()).with_context(config_path);
  std::size_t wanted = 0;
  for (const TensorSpec& spec :
       parameter_specs(model_layout({.shape = shape, .lora = recipe}), DType::kF32)) {
    const std::string name = peft_name(shape, spec.name);
    const TensorInfo* const found = adapters.reader_->find(name);
    const Status fits = check_tensor(found, spec, name);
    if (!fits.ok()) return Error(fits.error()).with_context(path);
    adapters.name_in_file_[spec.name] = name;
    ++wanted;
  }
  if (adapters.reader_->tensors().size() != wanted)
    return unknown(path + " has " + std::to_string(adapters.reader_->tensors().size()) +
                   " tensors, and adapters of this model have " + std::to_string(wanted) +
                   ": it is another model's");
  return adapters;
}

Result<AdapterWeights> AdapterWeights::open(aio::IoQueue& queue, const std::string& folder,
                                            const ModelOptions& options) {
  SLUICE_ASSIGN_OR_RETURN(AdapterWeights adapters, open(queue, folder, options.shape));
  const Status same = check_recipe(adapters.config_.recipe, options.lora);
  if (!same.ok()) return Error(same.error()).with_context(folder);
  return adapters;
}

}  // namespace sluice::engine
