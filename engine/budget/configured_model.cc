#include "engine/budget/configured_model.h"

#include <algorithm>

#include "engine/families/families.h"

namespace sluice::engine {
namespace {

// The token embedding's rows on the GPU are padded to a multiple that fills tensor-core tiles.
constexpr std::int64_t kVocabMultiple = 64;

}  // namespace

ModelOptions configured_model(const config::Config& config, bool on_gpu) {
  ModelOptions options{
      .shape = config.model.shape(), .lora = config.lora.recipe(), .fp8 = config.fp8.recipe()};
  if (on_gpu && config.precision != config::Precision::kFp32) {
    const std::int64_t more = options.shape.vocab % kVocabMultiple;
    options.padded_vocab = options.shape.vocab + (more == 0 ? 0 : kVocabMultiple - more);
  }
  return options;
}

ModelLayout configured_layout(const config::Config& config, bool on_gpu) {
  return model_layout(configured_model(config, on_gpu));
}

std::int64_t generation_context(const config::Config& config) {
  return std::min(config.model.context_tokens, config.data.sequence_tokens);
}

}  // namespace sluice::engine
