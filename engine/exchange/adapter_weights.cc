#include "engine/exchange/adapter_weights.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>
#include <vector>

#include "aio/bounded_json.h"
#include "aio/small_file.h"
#include "engine/exchange/described_model.h"
#include "engine/exchange/stored_shape.h"
#include "engine/families/families.h"
#include "engine/weights/quoting.h"

namespace sluice::engine {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kPrefix = "base_model.model.";  // PEFT's, before the model's own names
constexpr std::string_view kInfixA = ".lora_A.";
constexpr std::string_view kInfixB = ".lora_B.";
constexpr std::string_view kWrapped = ".base_layer";  // of the second adapter of one module
constexpr std::array kOfExperts = {"mlp.experts.gate_up_proj", "mlp.experts.down_proj"};
constexpr std::uint64_t kMaxConfigBytes = 1 << 20;
constexpr std::uint64_t kElementsAtOnce = std::uint64_t{1} << 20;
constexpr int kMostDepth = 8;  // of a file that PEFT wrote; dumping nested values recurses
constexpr std::size_t kMostShown = 80;
constexpr std::size_t kMostListed = 10;

Error corrupt(std::string what) { return Error(ErrorCode::kCorrupt, std::move(what)); }
Error unknown(std::string what) { return Error(ErrorCode::kInvalidArgument, std::move(what)); }

// Whether PEFT treats the value as "not used".
bool is_off(const Json& value) {
  return value.is_null() || value == Json(false) || (value.is_structured() && value.empty()) ||
         value == Json("");
}

// Any value of a file, in printable ASCII.
std::string shown(const Json& value) {
  const std::string text =
      value.dump(-1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace);
  return text.size() <= kMostShown ? text : text.substr(0, kMostShown) + "...";
}

// A plain name as it is, any other in quotes.
std::string shown_name(const std::string& name) {
  const auto is_plain = [](unsigned char c) {
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_' ||
           c == '.' || c == '-';
  };
  const bool plain =
      !name.empty() && name.size() <= kMostShown && std::all_of(name.begin(), name.end(), is_plain);
  return plain ? name : in_quotes(name);
}

// Finds the place where a text is not JSON that PEFT could have written.
class FaultFinder final : public nlohmann::json_sax<Json> {
 public:
  Status find(std::string_view text) {
    if (Json::sax_parse(text, this)) return {};
    if (depth_ > kMostDepth)
      return unknown("it is nested deeper than " + std::to_string(kMostDepth) +
                     " levels, unlike any adapter_config.json of PEFT" + std::string(kAgain));
    const std::size_t at = std::min(position_ > 0 ? position_ - 1 : 0, text.size());
    const std::size_t before = text.rfind('\n', at == 0 ? 0 : at - 1);
    const std::size_t first = before == std::string_view::npos ? 0 : before + 1;
    // For a long line, show only the text around the fault.
    const std::size_t from = std::max(first, at > kMostShown / 2 ? at - kMostShown / 2 : 0);
    const std::string_view line =
        text.substr(from, std::min(text.find('\n', at), at + kMostShown / 2) - from);
    return corrupt("it is not JSON at byte " + std::to_string(at) + ", in " + in_quotes(line) +
                   (at >= text.size() ? " (is it cut short?)" : "") + std::string(kAgain));
  }

  bool null() override { return true; }
  bool boolean(bool /*value*/) override { return true; }
  bool number_integer(number_integer_t /*value*/) override { return true; }
  bool number_unsigned(number_unsigned_t /*value*/) override { return true; }
  bool number_float(number_float_t /*value*/, const string_t& /*text*/) override { return true; }
  bool string(string_t& /*value*/) override { return true; }
  bool binary(binary_t& /*value*/) override { return true; }
  bool start_object(std::size_t /*elements*/) override { return ++depth_ <= kMostDepth; }
  bool start_array(std::size_t /*elements*/) override { return ++depth_ <= kMostDepth; }
  bool key(string_t& /*value*/) override { return true; }
  bool end_object() override { return --depth_ >= 0; }
  bool end_array() override { return --depth_ >= 0; }
  bool parse_error(std::size_t position, const std::string& /*token*/,
                   const nlohmann::json::exception& /*error*/) override {
    position_ = position;
    return false;
  }

 private:
  static constexpr std::string_view kAgain = ": save the adapter with PEFT's save_pretrained()";

  int depth_ = 0;
  std::size_t position_ = 0;  // bytes read up to the fault
};

// Keys that are read here, or that do not affect what adapters compute. Any other key in use is a
// variant that Sluice does not support.
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
                                       "target_parameters",
                                       "task_type",
                                       "use_rslora"};
Status check_known(const Json& json) {
  const Json type = json.value("peft_type", Json());
  if (type != Json("LORA"))
    return unknown("peft_type is " + shown(type) +
                   ", but Sluice supports only \"LORA\": train the adapter as LoRA, or convert it");
  for (const auto& [key, value] : json.items()) {
    if (std::find(std::begin(kKnown), std::end(kKnown), key) != std::end(kKnown) || is_off(value))
      continue;
    return unknown(shown_name(key) + " is " + shown(value) +
                   ", which Sluice does not support: train or convert the adapter without it");
  }
  const Json bias = json.value("bias", Json("none"));
  if (bias != Json("none"))
    return unknown("bias is " + shown(bias) +
                   ", but Sluice trains no biases with adapters: train the adapter with \"none\"");
  // These start from a changed base, to which the saved adapter belongs.
  const Json begun = json.value("init_lora_weights", Json(true));
  if (begun.is_string() && begun != Json("gaussian") && begun != Json("eva") &&
      begun != Json("orthogonal"))
    return unknown("init_lora_weights is " + shown(begun) +
                   ", which changes the base model: convert the adapter to plain LoRA (PEFT's "
                   "path_initial_model_for_weight_conversion)");
  return {};
}

Result<double> number_of(const Json& json, const char* key, double usual) {
  const Json value = json.value(key, Json(usual));
  if (!value.is_number())
    return corrupt(std::string(key) + " is " + shown(value) + ", which is not a number");
  return value.get<double>();
}

bool is_of_strings(const Json& value) {
  return value.is_array() &&
         std::all_of(value.begin(), value.end(), [](const Json& one) { return one.is_string(); });
}

// Whether target_parameters has both tensors of experts, by their names or the ends of these.
Result<bool> adapts_experts(const Json& json) {
  const Json value = json.value("target_parameters", Json());
  if (is_off(value)) return false;
  bool all = is_of_strings(value) && value.size() == kOfExperts.size();
  for (const std::string of : kOfExperts)
    all = all && std::any_of(value.begin(), value.end(), [&](const Json& one) {
            return ("." + of).ends_with("." + one.get<std::string>());
          });
  if (all) return true;
  return unknown(
      "target_parameters is " + shown(value) +
      ", but adapters are of all experts of a block or of none: " + Json(kOfExperts).dump());
}

Result<std::vector<std::string>> targets_of(const Json& json) {
  const Json value = json.value("target_modules", Json());
  SLUICE_ASSIGN_OR_RETURN(const bool of_experts, adapts_experts(json));
  if (of_experts && is_off(value)) return std::vector<std::string>{std::string(kExpertsTarget)};
  // For a pattern, the tensors show which products it matched.
  if (value.is_null() || (value.is_string() && value != Json("")))
    return std::vector<std::string>();
  if (!is_of_strings(value) || value.empty())
    return corrupt(
        "target_modules is " + shown(value) +
        ": it must be a list of the layers that have adapters, or a pattern of their names");
  auto targets = value.get<std::vector<std::string>>();
  if (of_experts) targets.emplace_back(kExpertsTarget);
  return targets;
}

// "model.layers.0.self_attn.q_proj" from that name with PEFT's prefix and ".lora_A.weight". Empty
// for a tensor that is not an adapter's.
std::string_view module_in(std::string_view name) {
  for (const std::string_view infix : {kInfixA, kInfixB}) {
    const std::size_t end = name.find(infix);
    if (end == std::string_view::npos) continue;
    name = name.substr(0, end);
    if (name.ends_with(kWrapped)) name.remove_suffix(kWrapped.size());
    return name.starts_with(kPrefix) ? name.substr(kPrefix.size()) : name;
  }
  return {};
}

// The targets that any tensor has, in the order of `known`.
Result<std::vector<std::string>> targets_in(std::span<const TensorInfo> tensors,
                                            std::span<const std::string_view> known) {
  std::set<std::string> found;
  for (const TensorInfo& tensor : tensors) {
    const std::string_view module = module_in(tensor.name);
    const std::string_view target = module.substr(module.rfind('.') + 1);
    if (std::find(known.begin(), known.end(), target) == known.end())
      return unknown(
          "it has a tensor " + shown_name(tensor.name) +
          ", which is not an adapter of this model's linear layers: train the adapter without it");
    found.insert(std::string(target));
  }
  std::vector<std::string> targets;
  for (const std::string_view target : known)
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
  for (std::size_t i = 0; i < std::min(items.size(), kMostListed); ++i)
    text += (text.empty() ? "" : ", ") + shown_name(items[i]);
  return items.size() > kMostListed ? text + ", ..." : text;
}

// `found`: null if the file has no such tensor.
Status check_tensor(const TensorInfo* found, const TensorSpec& wanted, const std::string& name) {
  if (found == nullptr)
    return unknown(
        "it has no tensor " + name +
        ": a linear layer must have an adapter (lora_A and lora_B) in every block or in none");
  if (found->shape != wanted.shape)
    return unknown(name + " is " + shape_text(found->shape) + ", but for this model it must be " +
                   shape_text(wanted.shape));
  if (!is_weight_dtype(found->dtype))
    return unknown(name + " is " + std::string(to_string(found->dtype)) +
                   ", but adapters must be F32, BF16, F16 or F64: save it as one of these");
  return {};
}

Status check_finite(SafetensorsReader& reader, const TensorInfo& tensor) {
  std::vector<float> values;
  for (std::uint64_t first = 0; first < tensor.elements; first += values.size()) {
    values.resize(std::min(kElementsAtOnce, tensor.elements - first));
    SLUICE_RETURN_IF_ERROR(reader.read_finite(tensor.name, first, values));
  }
  return {};
}

// Checks the listed targets, given as suffixes of module names: PEFT would drop adapters that match
// none of them.
Status check_targets(const std::string& path, const std::vector<std::string>& listed,
                     const std::vector<std::string>& found, std::span<const TensorInfo> tensors) {
  if (listed.empty()) return {};
  const std::set<std::string_view> wanted(listed.begin(), listed.end());
  std::set<std::string_view> met;
  bool all = true;
  for (const TensorInfo& tensor : tensors) {
    bool is_wanted = false;
    for (std::string_view end = module_in(tensor.name); !end.empty();) {
      if (const auto one = wanted.find(end); one != wanted.end()) {
        met.insert(*one);
        is_wanted = true;
      }
      const std::size_t dot = end.find('.');
      end = dot == std::string_view::npos ? std::string_view() : end.substr(dot + 1);
    }
    all = all && is_wanted;
  }
  if (all && met.size() == wanted.size()) return {};
  return unknown(path + ": target_modules is [" + list_of(listed) +
                 "], but the adapters in the same folder are for [" + list_of(found) +
                 "]: restore the file that was saved with them");
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
  return unknown("it differs from the configuration: " + differences +
                 ". Set recipe.lora to the adapter's values, or name another adapter");
}

}  // namespace

Result<PeftConfig> parse_peft_config(std::string_view text) {
  SLUICE_RETURN_IF_ERROR(FaultFinder().find(text));
  const Json json = json_or_discarded<Json>(text);
  if (!json.is_object())
    return corrupt("it is not a JSON object: save the adapter with PEFT's save_pretrained()");
  SLUICE_RETURN_IF_ERROR(check_known(json));
  PeftConfig config;
  SLUICE_ASSIGN_OR_RETURN(config.recipe.targets, targets_of(json));
  const Json rank = json.value("r", Json(8));
  if (!rank.is_number_integer() || rank.get<std::int64_t>() < 1 ||
      rank.get<std::int64_t>() > kMostAdapterRank)
    return corrupt("r is " + shown(rank) +
                   ", which is not a rank: it must be a whole number from 1 to " +
                   std::to_string(kMostAdapterRank));
  config.recipe.rank = rank.get<std::int64_t>();
  SLUICE_ASSIGN_OR_RETURN(config.recipe.alpha, number_of(json, "lora_alpha", 8));
  double& dropout = config.recipe.dropout;
  SLUICE_ASSIGN_OR_RETURN(dropout, number_of(json, "lora_dropout", 0));
  if (dropout < 0 || dropout >= 1)
    return corrupt("lora_dropout is " + shown(json["lora_dropout"]) +
                   ", which is not a dropout probability: it must be at least 0 and below 1");
  const Json stabilised = json.value("use_rslora", Json(false));
  if (!stabilised.is_boolean())
    return corrupt("use_rslora is " + shown(stabilised) + ": it must be true or false");
  config.recipe.rank_stabilised = stabilised.get<bool>();
  const Json base = json.value("base_model_name_or_path", Json());
  if (base.is_string()) config.base = base.get<std::string>();
  return config;
}

std::string peft_config_text(const PeftConfig& config) {
  std::vector<std::string> modules = config.recipe.targets;
  const bool of_experts = std::erase(modules, kExpertsTarget) > 0;
  const nlohmann::ordered_json json = {
      {"peft_type", "LORA"},
      {"task_type", "CAUSAL_LM"},
      {"base_model_name_or_path", config.base.empty() ? Json() : Json(config.base)},
      {"revision", config.base_revision.empty() ? Json() : Json(config.base_revision)},
      {"r", config.recipe.rank},
      {"lora_alpha", config.recipe.alpha},
      {"lora_dropout", config.recipe.dropout},
      {"use_rslora", config.recipe.rank_stabilised},
      {"target_modules", modules.empty() ? Json() : Json(modules)},
      {"target_parameters", of_experts ? Json(kOfExperts) : Json()},
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

Result<std::vector<std::string>> adapter_targets_in(aio::IoQueue& queue, const std::string& folder,
                                                    std::span<const std::string_view> known) {
  const std::string path = folder + "/" + std::string(kPeftWeightsName);
  SLUICE_ASSIGN_OR_RETURN(const auto reader, SafetensorsReader::open(queue, path));
  auto targets = targets_in(reader->tensors(), known);
  if (!targets.ok()) return std::move(targets).error().with_context(path);
  return targets;
}

Status check_is_no_adapter(aio::FileSystem& files, const std::string& folder) {
  SLUICE_ASSIGN_OR_RETURN(const bool adapter,
                          files.exists(folder + "/" + std::string(kPeftConfigName)));
  if (!adapter) return {};
  SLUICE_ASSIGN_OR_RETURN(const bool model, files.exists(folder + "/config.json"));
  if (model) return {};
  return unknown(folder +
                 " contains an adapter, not its base model: name the base model, and this folder "
                 "as recipe.lora.adapter (sluice train) or --adapter (sluice eval)");
}

Error no_adapter(const std::string& folder) {
  return {ErrorCode::kNotFound,
          "there is no " + folder + "/" + std::string(kPeftConfigName) +
              ": name the folder of an adapter as PEFT's save_pretrained() leaves it" +
              download_hint(folder)};
}

Result<AdapterWeights> AdapterWeights::open(aio::IoQueue& queue, const std::string& folder,
                                            const ModelShape& shape) {
  AdapterWeights adapters;
  const std::string config_path = folder + "/" + std::string(kPeftConfigName);
  const auto text = aio::read_small_file(queue, config_path, kMaxConfigBytes);
  if (!text.ok() && text.error().code() == ErrorCode::kNotFound) return no_adapter(folder);
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
  auto targets = targets_in(adapters.reader_->tensors(), family_of(shape).adapter_targets(shape));
  if (!targets.ok()) return std::move(targets).error().with_context(path);
  LoraRecipe& recipe = adapters.config_.recipe;
  if (targets->empty())
    return corrupt(path + " contains no adapters: save the adapter with PEFT's save_pretrained()");
  SLUICE_RETURN_IF_ERROR(
      check_targets(config_path, recipe.targets, *targets, adapters.reader_->tensors()));
  recipe.targets = *std::move(targets);
  const Status valid = validate(recipe, shape);
  if (!valid.ok()) return Error(valid.error()).with_context(config_path);
  std::set<std::string> wanted;
  for (const TensorSpec& spec :
       parameter_specs(model_layout({.shape = shape, .lora = recipe}), DType::kF32)) {
    const std::string name = peft_name(shape, spec.name);
    const TensorInfo* const found = adapters.reader_->find(name);
    Status fits = check_tensor(found, spec, name);
    if (!fits.ok()) return std::move(fits).error().with_context(path);
    SLUICE_RETURN_IF_ERROR(check_finite(*adapters.reader_, *found));
    adapters.name_in_file_[spec.name] = name;
    wanted.insert(name);
  }
  for (const TensorInfo& tensor : adapters.reader_->tensors())
    if (!wanted.contains(tensor.name))
      return unknown(path + ": it has a tensor " + shown_name(tensor.name) +
                     ", which does not exist in this model: the adapter belongs to another model");
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
