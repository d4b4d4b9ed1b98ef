// Model presets, and whether a shape can be built.
#include <array>
#include <cmath>

#include "engine/config/derive.h"
#include "engine/config/model_presets.h"

namespace sluice::config {
namespace {

constexpr std::int64_t kGpt2Vocab = 50257;

// Radford et al., "Language Models are Unsupervised Multitask Learners", 2019, table 2.
constexpr std::array<NamedShape, 5> kPresets = {{
    {ModelPreset::kGpt2Small, "gpt2-small", 12, 768, 12, 1024, kGpt2Vocab},
    {ModelPreset::kGpt2Medium, "gpt2-medium", 24, 1024, 16, 1024, kGpt2Vocab},
    {ModelPreset::kGpt2Large, "gpt2-large", 36, 1280, 20, 1024, kGpt2Vocab},
    {ModelPreset::kGpt2Xl, "gpt2-xl", 48, 1600, 25, 1024, kGpt2Vocab},
    {ModelPreset::kGptLite, "gpt-lite", 12, 768, 12, 2048, kGpt2Vocab},
}};

// 0: the preset has none, so the file has to give it.
void fill(Derivation& derivation, std::string_view path, std::int64_t& field,
          std::int64_t of_preset) {
  if (derivation.given(path)) return;
  field = of_preset;
  if (of_preset != 0) return derivation.note(path, "model.preset");
  derivation.reject("model.preset is custom, so " + std::string(path) + " has to be given");
}

}  // namespace

std::span<const NamedShape> model_presets() { return kPresets; }

void derive_model(Derivation& derivation) {
  Model& model = derivation.config.model;
  NamedShape preset{};
  for (const NamedShape& known : kPresets) {
    if (known.preset == model.preset) preset = known;
  }
  fill(derivation, "model.layers", model.layers, preset.layers);
  fill(derivation, "model.hidden", model.hidden, preset.hidden);
  fill(derivation, "model.heads", model.heads, preset.heads);
  fill(derivation, "model.context", model.context_tokens, preset.context_tokens);
  fill(derivation, "model.vocab", model.vocab, preset.vocab);
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
