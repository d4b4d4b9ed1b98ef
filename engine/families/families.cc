#include "engine/families/families.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "aio/bounded_json.h"
#include "aio/check.h"
#include "engine/families/decoder_family.h"

namespace sluice::engine {

// Each is in the file of its name.
#define SLUICE_FAMILIES(FAMILY) \
  FAMILY(gpt2) FAMILY(llama) FAMILY(qwen3_5) FAMILY(gemma3) FAMILY(gemma2)
#define SLUICE_DECLARE(name) FamilyTable name##_table();
SLUICE_FAMILIES(SLUICE_DECLARE)

namespace {

std::vector<const ModelFamily*>& table() {
#define SLUICE_MAKE(name) DecoderFamily(name##_table()),
  static const DecoderFamily decoders[] = {SLUICE_FAMILIES(SLUICE_MAKE)};
  static std::vector<const ModelFamily*> families = [] {
    std::vector<const ModelFamily*> all;
    for (const DecoderFamily& one : decoders) all.push_back(&one);
    return all;
  }();
  return families;
}

// Set when the whole table is handed out: data derived from it would lack a family added later.
std::atomic<bool> sealed = false;

const std::vector<const ModelFamily*>& sealed_table() {
  sealed = true;
  return table();
}

std::string number_text(double value) { return nlohmann::json(value).dump(); }

Status check_number(const ShapeNumber& number, const ModelFamily& family, const ModelShape& shape) {
  const std::string name(number.name());
  const auto found = shape.numbers.find(name);
  if (found == shape.numbers.end() && number.omit_if_default) return {};
  if (found == shape.numbers.end())
    return cannot_build("a model of the family " + std::string(family.name()) + " needs " + name);
  const double value = found->second;
  const bool may_have_fraction = !number.whole && number.choices.empty();
  const bool is_whole = may_have_fraction || value == std::floor(value);
  if (value >= number.least() && value <= number.most() && is_whole) return {};
  const std::string limit = value < number.least()  ? "at least " + number_text(number.least())
                            : value > number.most() ? "at most " + number_text(number.most())
                            : !is_whole             ? std::string("a whole number")
                                                    : std::string("a number");
  return cannot_build(name + " is " + number_text(value) + "; in a model of the family " +
                      std::string(family.name()) + " it must be " + limit);
}

// Checks that the shape has the family's numbers, and no others.
Status check_numbers(const ModelFamily& family, const ModelShape& shape) {
  const auto known = family.numbers();
  for (const auto& [name, value] : shape.numbers) {
    if (std::none_of(known.begin(), known.end(),
                     [&](const ShapeNumber& one) { return one.name() == name; }))
      return cannot_build(name + " is not a number of the family " + std::string(family.name()));
  }
  for (const ShapeNumber& number : known)
    SLUICE_RETURN_IF_ERROR(check_number(number, family, shape));
  return {};
}

Status check_lists(const ModelFamily& family, const ModelShape& shape) {
  const auto known = family.lists();
  for (const auto& [name, values] : shape.lists) {
    if (std::none_of(known.begin(), known.end(),
                     [&](const ShapeList& one) { return one.name() == name; }))
      return cannot_build(name + " is not a list of the family " + std::string(family.name()));
    if (values.empty()) return cannot_build(name + " is an empty list: leave it out");
  }
  return {};
}

}  // namespace

const std::vector<const ModelFamily*>& model_families() { return sealed_table(); }

void add_family(const ModelFamily& family) {
  const std::string name(family.name());
  SLUICE_CHECK(find_family(name) == nullptr, ("there are two families " + name).c_str());
  SLUICE_CHECK(!sealed, ("the family " + name +
                         " was added too late: the table of families is already in use; call "
                         "add_family() before that")
                            .c_str());
  table().push_back(&family);
}

const ModelFamily* find_family(std::string_view name) {
  for (const ModelFamily* family : table())
    if (family->name() == name) return family;
  return nullptr;
}

const ModelFamily& family_of(const ModelShape& shape) {
  const ModelFamily* family = find_family(shape.family);
  SLUICE_CHECK(family != nullptr, "a model of a family that there is");
  return *family;
}

std::vector<NamedShape> model_presets() {
  std::vector<NamedShape> all;
  for (const ModelFamily* family : sealed_table())
    for (const NamedShape& known : family->presets())
      all.push_back({.name = known.name, .shape = complete(known.shape)});
  return all;
}

std::optional<ModelShape> preset_shape(std::string_view name) {
  for (const ModelFamily* family : table())
    for (const NamedShape& known : family->presets())
      if (known.name == name) return complete(known.shape);
  return std::nullopt;
}

ModelShape complete(ModelShape shape) {
  const ModelFamily* family = find_family(shape.family);
  if (family == nullptr) return shape;
  for (const ShapeNumber& number : family->numbers())
    shape.numbers.try_emplace(std::string(number.name()), number.default_value);
  family->resolve_derived(shape);
  return shape;
}

Status validate(const ModelShape& shape) {
  const ModelFamily* family = find_family(shape.family);
  if (family == nullptr) {
    std::string known;
    for (const ModelFamily* one : table())
      known += (known.empty() ? "" : ", ") + std::string(one->name());
    return cannot_build("there is no family " + shape.family + "; there is " + known);
  }
  SLUICE_RETURN_IF_ERROR(check_sizes(shape));
  SLUICE_RETURN_IF_ERROR(check_numbers(*family, shape));
  SLUICE_RETURN_IF_ERROR(check_lists(*family, shape));
  return family->check(shape);
}

Status validate(const LoraRecipe& lora, const ModelShape& shape) {
  if (!lora.exists()) return {};
  const auto known = family_of(shape).adapter_targets(shape);
  if (known.empty())
    return cannot_build("models of the family " + shape.family + " have no adapters");
  if (lora.rank > kMostAdapterRank)
    return cannot_build("its adapters are of rank " + std::to_string(lora.rank) + ", and " +
                        std::to_string(kMostAdapterRank) + " is the maximum");
  if (lora.targets.empty()) return cannot_build("its adapters have no targets");
  for (const std::string& target : lora.targets)
    if (std::find(known.begin(), known.end(), target) == known.end())
      return cannot_build(target + " cannot have an adapter");
  if (!(lora.alpha > 0) || !std::isfinite(static_cast<float>(lora.alpha)))
    return cannot_build("the alpha of its adapters is " + number_text(lora.alpha) +
                        "; it must be above 0 and representable in fp32");
  if (!lora.has_base_codec())
    return cannot_build("the base of its adapters has " + std::to_string(lora.base_bits) + " bits" +
                        (lora.double_quant ? " with double quantisation" : "") +
                        "; it must have 16, 8 or 4, which alone may have double quantisation");
  if (lora.adapts_experts() && lora.dropout > 0)
    return cannot_build("adapters of experts have no dropout, and it is " +
                        number_text(lora.dropout));
  if (!(lora.dropout >= 0 && lora.dropout < 1))
    return cannot_build("the dropout of its adapters is " + number_text(lora.dropout) +
                        "; it must be at least 0 and below 1");
  return {};
}

std::optional<DecoderSpec> decoder_spec(const ModelShape& shape) {
  const auto* const decoder = dynamic_cast<const DecoderFamily*>(find_family(shape.family));
  if (decoder == nullptr) return std::nullopt;
  return decoder->spec(shape);
}

std::vector<ModuleClass> module_classes() {
  std::vector<ModuleClass> classes;
  for (const ModelFamily* family : table()) {
    const auto* const decoder = dynamic_cast<const DecoderFamily*>(family);
    if (decoder == nullptr) continue;
    for (const FamilyClass& type : decoder->table().classes) {
      if (!type.text_type.empty()) continue;
      std::string keys;
      for (const ConfigRow& row : decoder->table().rows)
        if (row.is_of(type.model_type) && row.use != ConfigUse::kOfPart)
          keys += std::string(row.key) + "|" + std::string(row.part.keys) + "|";
      ModuleClass& made = classes.emplace_back();
      made.model_type = type.model_type;
      made.name = type.architecture;
      for (std::size_t first = 0; first < keys.size();) {
        const std::size_t end = keys.find('|', first);
        if (end > first) made.keys.push_back(keys.substr(first, end - first));
        first = end + 1;
      }
    }
  }
  return classes;
}

ModelLayout model_layout(const ModelOptions& options) {
  return family_of(options.shape).layout(options);
}

bool has_learned_positions(const ModelShape& shape) {
  ModelShape longer = shape;
  ++longer.context_tokens;
  return model_layout({.shape = longer}).parameter_elements() !=
         model_layout({.shape = shape}).parameter_elements();
}

Result<HuggingFaceModel> read_hugging_face_config(std::string_view text) {
  SLUICE_ASSIGN_OR_RETURN(const auto json, read_json_object<nlohmann::json>(text));
  const nlohmann::json type = json.value("model_type", nlohmann::json());
  std::string known;
  for (const ModelFamily* family : table()) {
    for (const std::string_view of_family : family->model_types()) {
      if (type == std::string(of_family)) {
        SLUICE_ASSIGN_OR_RETURN(HuggingFaceModel model, family->read_config(text));
        model.shape = complete(std::move(model.shape));
        return model;
      }
      known += (known.empty() ? "\"" : ", \"") + std::string(of_family) + "\"";
    }
  }
  return Error(
      ErrorCode::kInvalidArgument,
      "\"model_type\" is " + type.dump() + ", but Sluice supports only the model types " + known);
}

}  // namespace sluice::engine
