// A model's shape: that of its preset, modified by the given keys.
#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "engine/config/derive.h"
#include "engine/families/families.h"

namespace sluice::config {
namespace {

// The shape that the file's keys modify.
struct Origin {
  engine::ModelShape shape;  // hidden 0: there is none
  const char* key = "model.preset";
  bool exists() const { return shape.hidden != 0; }
};

// of_origin 0: the origin has no value, so the file must give it.
void fill(Derivation& derivation, std::string_view path, std::int64_t& field, const Origin& origin,
          std::int64_t of_origin) {
  if (derivation.given(path)) return;
  field = of_origin;
  if (of_origin != 0) return derivation.note(path, origin.key);
  const bool by_family = !derivation.given("model.preset");
  derivation.reject(
      by_family ? "model.family is " + derivation.config.model.family +
                      " and no model.preset is named, so " + std::string(path) + " must be given"
                : "model.preset is custom, so " + std::string(path) + " must be given");
}

// The default of a number, and the origin or family that defines it.
struct Usual {
  double value = 0;
  const char* whose = nullptr;
};
void fill(Derivation& derivation, std::string_view path, double& field, const Usual& usual) {
  if (derivation.given(path)) return;
  field = usual.value;
  derivation.note(path, usual.whose);
}

void fill_rest(Derivation& derivation, const Origin& origin) {
  Model& model = derivation.config.model;
  const engine::ModelFamily* family = engine::find_family(model.family);
  engine::DefaultNumbers defaults =
      family == nullptr ? engine::DefaultNumbers{} : family->default_numbers();
  const char* whose = "the family's";
  if (origin.exists()) {
    const engine::ModelShape& shape = origin.shape;
    defaults = {
        .dropout = shape.dropout,
        .ffn_multiplier = static_cast<double>(shape.ffn()) / static_cast<double>(shape.hidden)};
    whose = origin.key;
  }
  fill(derivation, "model.dropout", model.dropout, {defaults.dropout, whose});
  constexpr const char* kFfn = "model.ffn_multiplier";
  fill(derivation, kFfn, model.ffn_multiplier, {defaults.ffn_multiplier, whose});
  // In a run's stored configuration this counts as a given value, so it must be in range.
  const Range& range = find_key(kFfn)->range;
  if (model.ffn_multiplier < range.minimum || model.ffn_multiplier > range.maximum)
    derivation.reject(std::string(whose) + " has a feed-forward layer " +
                      std::to_string(model.ffn_multiplier) +
                      " times as wide as model.hidden, which is more than " + kFfn + " may be");
}

void fill_family(Derivation& derivation, const Origin& origin) {
  Model& model = derivation.config.model;
  if (!derivation.given("model.family")) {
    model.family = origin.shape.family;
    if (origin.exists()) derivation.note("model.family", origin.key);
  } else if (origin.exists() && model.family != origin.shape.family) {
    const std::string whose = model.path.empty() ? model.preset : model.path;
    derivation.reject("model.family is " + model.family + ", and " + origin.key + " " + whose +
                      " is of the family " + origin.shape.family + ": leave one of them out");
  }
}

bool lacks_sizes(const Derivation& derivation) {
  constexpr const char* kSizes[] = {"model.layers", "model.hidden", "model.heads", "model.context",
                                    "model.vocab"};
  return std::any_of(std::begin(kSizes), std::end(kSizes),
                     [&](const char* size) { return !derivation.given(size); });
}

// The shape in model.path's folder; a stand-in until its config.json is available.
Origin folder_origin(Derivation& derivation) {
  Model& model = derivation.config.model;
  if (derivation.given("model.preset") && model.preset != kCustomPreset)
    derivation.reject("model.path gives the model's shape: leave model.preset out");
  model.preset = kCustomPreset;
  derivation.note("model.preset", "model.path");
  // A run's stored configuration has both; a path from a later source is its new place.
  if (derivation.rank("model.path") > derivation.rank("model.init_from")) {
    model.init_from = model.path;
    derivation.note("model.init_from", "model.path");
  }
  Origin origin{.shape = {}, .key = "model.path"};
  // A run's stored configuration has all sizes.
  if (!lacks_sizes(derivation)) return origin;
  const engine::ModelShape stand_in = engine::model_presets().front().shape;
  if (!derivation.facts.model) {
    derivation.missing_facts.model = true;
    origin.shape = stand_in;
    return origin;
  }
  const auto read = engine::read_hugging_face_config(derivation.facts.model->text);
  if (!read.ok()) {
    derivation.model_refused = true;
    derivation.reject("model.path: " + derivation.facts.model->name + ": " +
                      read.error().message());
  }
  origin.shape = read.ok() ? read->shape : stand_in;
  return origin;
}

// The first family that has all given keys of families, for a file with all sizes, if the usual
// family lacks one; else empty.
std::string_view family_of_keys(const Derivation& derivation, std::string_view usual) {
  const auto has_all = [&](std::string_view family) {
    return std::all_of(all_keys().begin(), all_keys().end(), [&](const Key& key) {
      return belongs_to(key, family) || !derivation.given(key.path);
    });
  };
  if (lacks_sizes(derivation) || has_all(usual)) return {};
  for (const engine::ModelFamily* family : engine::model_families())
    if (has_all(family->name())) return family->name();
  return {};
}

// The default preset does not apply to a file that names another family, or keys of one.
void replace_default_preset(Derivation& derivation) {
  if (derivation.given("model.preset")) return;
  derivation.config.model.preset = kCustomPreset;
  derivation.note("model.preset", "model.family");
}

Origin preset_origin(Derivation& derivation) {
  Model& model = derivation.config.model;
  const engine::ModelShape shape =
      engine::preset_shape(model.preset).value_or(engine::ModelShape{});
  if (derivation.given("model.preset") && model.preset != kCustomPreset) return {.shape = shape};
  if (!derivation.given("model.family")) {
    const std::string_view family = family_of_keys(derivation, shape.family);
    if (family.empty()) return {.shape = shape};
    derivation.note("model.family", "the family that has these keys");
    replace_default_preset(derivation);
    return {.shape = {.family = std::string(family)}};
  }
  if (model.family == shape.family) return {.shape = shape};
  replace_default_preset(derivation);
  return {};
}

void fill_numbers(Derivation& derivation, const Origin& origin) {
  Model& model = derivation.config.model;
  for (const Key& key : all_keys()) {
    if (belongs_to(key, model.family) || !derivation.given(key.path)) continue;
    derivation.reject(std::string(key.path) + " belongs to models of the family " +
                      choices_in_words(key.families) + ", and this model is of the family " +
                      model.family);
  }
  std::map<std::string, std::optional<double>> given = std::move(model.numbers);
  model.numbers.clear();
  auto given_lists = std::exchange(model.lists, {});
  const engine::ModelFamily* family = engine::find_family(model.family);
  if (family == nullptr) return;
  for (const engine::ShapeNumber& number : family->numbers()) {
    const std::string name(number.name());
    const auto of_origin = origin.shape.numbers.find(name);
    const bool has = of_origin != origin.shape.numbers.end();
    model.numbers[name] = given[name].value_or(has ? of_origin->second : number.default_value);
    if (!given[name]) derivation.note(number.key, has ? origin.key : "the family's");
  }
  for (const engine::ShapeList& list : family->lists()) {
    const std::string name(list.name());
    const auto of_origin = origin.shape.lists.find(name);
    if (derivation.given(list.key)) {
      model.lists[name] = given_lists[name];
    } else if (of_origin != origin.shape.lists.end()) {
      model.lists[name] = of_origin->second;
      derivation.note(list.key, origin.key);
    }
  }
  const engine::ModelShape resolved = engine::complete(model.shape());
  for (const auto& [name, value] : resolved.numbers) model.numbers[name] = value;
}

// Whether the family has such a model. Missing sizes have been reported already.
void check_shape(Derivation& derivation) {
  const Model& model = derivation.config.model;
  for (const std::int64_t size :
       {model.layers, model.hidden, model.heads, model.context_tokens, model.vocab})
    if (size == 0) return;
  const Status valid = engine::validate(model.shape());
  if (!valid.ok()) derivation.reject(valid.error().message());
}

// The folder of a model that is given by its name on the hub.
void take_hub_folder(Derivation& derivation, std::string_view key, std::string& path) {
  const auto found = derivation.facts.hub_folders.find(path);
  if (found == derivation.facts.hub_folders.end()) return;
  derivation.note(key, path + " of the Hugging Face hub");
  path = found->second;
}

}  // namespace

void derive_model(Derivation& derivation) {
  Model& model = derivation.config.model;
  take_hub_folder(derivation, "model.path", model.path);
  take_hub_folder(derivation, "model.init_from", model.init_from);
  const Origin origin = model.path.empty() ? preset_origin(derivation) : folder_origin(derivation);
  fill_family(derivation, origin);
  const engine::ModelShape& shape = origin.shape;
  fill(derivation, "model.layers", model.layers, origin, shape.layers);
  fill(derivation, "model.hidden", model.hidden, origin, shape.hidden);
  fill(derivation, "model.heads", model.heads, origin, shape.heads);
  fill(derivation, "model.context", model.context_tokens, origin, shape.context_tokens);
  fill(derivation, "model.vocab", model.vocab, origin, shape.vocab);
  fill_rest(derivation, origin);
  fill_numbers(derivation, origin);
  check_shape(derivation);
}

std::int64_t Model::ffn_hidden() const {
  const auto width = std::llround(static_cast<double>(hidden) * ffn_multiplier);
  return std::max(static_cast<std::int64_t>(width), std::int64_t{1});
}

engine::ModelShape Model::shape() const {
  engine::ModelShape shape{.layers = layers,
                           .hidden = hidden,
                           .heads = heads,
                           .context_tokens = context_tokens,
                           .vocab = vocab,
                           .dropout = dropout,
                           .ffn_hidden = ffn_hidden(),
                           .family = family};
  for (const auto& [name, value] : numbers)
    if (value) shape.numbers[name] = *value;
  for (const auto& [name, values] : lists)
    if (!values.empty()) shape.lists[name] = values;
  return shape;
}

}  // namespace sluice::config
