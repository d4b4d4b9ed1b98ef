// Model presets, and whether a shape can be built.
#include <array>
#include <cmath>

#include "engine/config/derive.h"

namespace sluice::config {
namespace {

struct Preset {
  ModelPreset name;
  std::int64_t layers;
  std::int64_t hidden;
  std::int64_t heads;
  std::int64_t context_tokens;
};

constexpr std::int64_t kGpt2Vocab = 50257;

// Radford et al., "Language Models are Unsupervised Multitask Learners", 2019, table 2.
constexpr std::array<Preset, 5> kPresets = {{
    {ModelPreset::kGpt2Small, 12, 768, 12, 1024},
    {ModelPreset::kGpt2Medium, 24, 1024, 16, 1024},
    {ModelPreset::kGpt2Large, 36, 1280, 20, 1024},
    {ModelPreset::kGpt2Xl, 48, 1600, 25, 1024},
    {ModelPreset::kGptLite, 12, 768, 12, 2048},
}};

// 0: the preset has none, so the file has to say it.
void fill(Derivation& derivation, std::string_view path, std::int64_t& field,
          std::int64_t of_preset) {
  if (derivation.given(path)) return;
  field = of_preset;
  if (of_preset != 0) return derivation.note(path, "model.preset");
  derivation.reject("model.preset is custom, so " + std::string(path) + " has to be given");
}

}  // namespace

void derive_model(Derivation& derivation) {
  Model& model = derivation.config.model;
  Preset preset{};
  for (const Preset& known : kPresets) {
    if (known.name == model.preset) preset = known;
  }
  fill(derivation, "model.layers", model.layers, preset.layers);
  fill(derivation, "model.hidden", model.hidden, preset.hidden);
  fill(derivation, "model.heads", model.heads, preset.heads);
  fill(derivation, "model.context", model.context_tokens, preset.context_tokens);
  fill(derivation, "model.vocab", model.vocab, preset.layers == 0 ? 0 : kGpt2Vocab);
  if (model.heads > 0 && model.hidden % model.heads != 0) {
    derivation.reject("model.hidden " + std::to_string(model.hidden) +
                      " cannot be divided among model.heads " + std::to_string(model.heads) +
                      ": make it a multiple of them");
  }
}

std::int64_t Model::ffn_hidden() const {
  return static_cast<std::int64_t>(std::llround(static_cast<double>(hidden) * ffn_multiplier));
}

}  // namespace sluice::config
