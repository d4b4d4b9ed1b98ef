// A model's shape: of its preset, changed by what is given.
#include <algorithm>
#include <cmath>

#include "engine/config/derive.h"
#include "engine/families/families.h"

namespace sluice::config {
namespace {

// 0: the preset has none, so the file has to say it.
void fill(Derivation& derivation, std::string_view path, std::int64_t& field,
          std::int64_t of_preset) {
  if (derivation.given(path)) return;
  field = of_preset;
  if (of_preset != 0) return derivation.note(path, "model.preset");
  derivation.reject("model.preset is custom, so " + std::string(path) + " has to be given");
}

// Of what a preset or a family has a usual number for.
struct Usual {
  double value = 0;
  const char* whose = nullptr;
};
void fill(Derivation& derivation, std::string_view path, double& field, const Usual& usual) {
  if (derivation.given(path)) return;
  field = usual.value;
  derivation.note(path, usual.whose);
}

void fill_rest(Derivation& derivation, const engine::ModelShape& preset) {
  Model& model = derivation.config.model;
  const engine::ModelFamily* family = engine::find_family(model.family);
  engine::UsualNumbers usual = family == nullptr ? engine::UsualNumbers{} : family->usual();
  const char* whose = "the family's";
  if (model.preset != kCustomPreset) {
    usual = {
        .dropout = preset.dropout,
        .ffn_multiplier = static_cast<double>(preset.ffn()) / static_cast<double>(preset.hidden)};
    whose = "model.preset";
  }
  fill(derivation, "model.dropout", model.dropout, {usual.dropout, whose});
  fill(derivation, "model.ffn_multiplier", model.ffn_multiplier, {usual.ffn_multiplier, whose});
}

void fill_family(Derivation& derivation, const engine::ModelShape& preset) {
  Model& model = derivation.config.model;
  if (!derivation.given("model.family")) {
    model.family = preset.family;
    if (model.preset != kCustomPreset) derivation.note("model.family", "model.preset");
  } else if (model.preset != kCustomPreset && model.family != preset.family) {
    derivation.reject("model.family is " + model.family + ", and model.preset " + model.preset +
                      " is of the family " + preset.family + ": leave one of them out");
  }
}

void fill_numbers(Derivation& derivation, const engine::ModelShape& preset) {
  Model& model = derivation.config.model;
  for (const Key& key : all_keys()) {
    if (belongs_to(key, model.family) || !derivation.given(key.path)) continue;
    derivation.reject(std::string(key.path) + " belongs to models of the family " +
                      choices_in_words(key.families) + ", and this one is of " + model.family);
  }
  std::map<std::string, std::optional<double>> given = std::move(model.numbers);
  model.numbers.clear();
  const engine::ModelFamily* family = engine::find_family(model.family);
  if (family == nullptr) return;
  for (const engine::ShapeNumber& number : family->numbers()) {
    const std::string name(number.name());
    const auto of_preset = preset.numbers.find(name);
    const double usual =
        of_preset == preset.numbers.end() ? number.default_value : of_preset->second;
    model.numbers[name] = given[name].value_or(usual);
    if (!given[name]) derivation.note(number.key, "the family's");
  }
  const engine::ModelShape settled = engine::complete(model.shape());
  for (const auto& [name, value] : settled.numbers) model.numbers[name] = value;
}

// Whether the family has such a model. What a file has left out has been said already.
void check_shape(Derivation& derivation) {
  const Model& model = derivation.config.model;
  for (const std::int64_t size :
       {model.layers, model.hidden, model.heads, model.context_tokens, model.vocab})
    if (size == 0) return;
  const Status valid = engine::validate(model.shape());
  if (!valid.ok()) derivation.reject(valid.error().message());
}

}  // namespace

void derive_model(Derivation& derivation) {
  Model& model = derivation.config.model;
  const engine::ModelShape preset =
      engine::preset_shape(model.preset).value_or(engine::ModelShape{});
  fill_family(derivation, preset);
  fill(derivation, "model.layers", model.layers, preset.layers);
  fill(derivation, "model.hidden", model.hidden, preset.hidden);
  fill(derivation, "model.heads", model.heads, preset.heads);
  fill(derivation, "model.context", model.context_tokens, preset.context_tokens);
  fill(derivation, "model.vocab", model.vocab, preset.vocab);
  fill_rest(derivation, preset);
  fill_numbers(derivation, preset);
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
  return shape;
}

}  // namespace sluice::config
