#include "engine/families/families.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "aio/check.h"
#include "engine/model/gpt2/gpt2_family.h"

namespace sluice::engine {
namespace {

std::vector<const ModelFamily*>& table() {
  static std::vector<const ModelFamily*> families = {&gpt2_family()};
  return families;
}

std::string number_text(double value) { return nlohmann::json(value).dump(); }

Status check_numbers(const ModelFamily& family, const ModelShape& shape) {
  for (const auto& [name, value] : shape.numbers) {
    const auto known = family.numbers();
    const auto it = std::find_if(known.begin(), known.end(),
                                 [&](const ShapeNumber& one) { return one.name() == name; });
    if (it == known.end())
      return cannot_build(name + " is no number of the family " + std::string(family.name()));
    if (!(value >= it->minimum && value <= it->maximum))
      return cannot_build(name + " is " + number_text(value) + "; it must be " +
                          number_text(it->minimum) + " to " + number_text(it->maximum));
  }
  return {};
}

}  // namespace

const std::vector<const ModelFamily*>& model_families() { return table(); }

void add_family(const ModelFamily& family) {
  SLUICE_CHECK(find_family(family.name()) == nullptr, "a family that is not there yet");
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
  for (const ModelFamily* family : table())
    all.insert(all.end(), family->presets().begin(), family->presets().end());
  return all;
}

std::optional<ModelShape> preset_shape(std::string_view name) {
  for (const NamedShape& known : model_presets())
    if (known.name == name) return known.shape;
  return std::nullopt;
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
  return family->check(shape);
}

ModelLayout model_layout(const ModelOptions& options) {
  return family_of(options.shape).layout(options);
}

Result<HuggingFaceModel> read_hugging_face_config(std::string_view text) {
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_object()) return Error(ErrorCode::kCorrupt, "it is not a JSON object");
  const nlohmann::json type = json.value("model_type", nlohmann::json());
  std::string known;
  for (const ModelFamily* family : table()) {
    if (type == std::string(family->model_type())) return family->read_config(text);
    known += (known.empty() ? "\"" : ", \"") + std::string(family->model_type()) + "\"";
  }
  return Error(
      ErrorCode::kInvalidArgument,
      "\"model_type\" is " + type.dump() + ", and Sluice's models are of the model_type " + known);
}

}  // namespace sluice::engine
