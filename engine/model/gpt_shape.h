// GptShape: the numbers that make a member of the GPT-2 family. Without LibTorch.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "aio/result.h"

namespace sluice::config {
struct Model;
}

namespace sluice::engine {

struct GptShape {
  std::int64_t layers = 0;
  std::int64_t hidden = 0;
  std::int64_t heads = 0;
  std::int64_t context_tokens = 0;
  std::int64_t vocab = 0;
  double dropout = 0;           // of embeddings, attention probabilities and both residual branches
  std::int64_t ffn_hidden = 0;  // 0: 4 * hidden

  std::int64_t head_dim() const { return hidden / heads; }
  std::int64_t ffn() const { return ffn_hidden == 0 ? 4 * hidden : ffn_hidden; }
};

GptShape gpt_shape(const config::Model& model);

// Of engine/config/model_presets.h, with a dropout of 0.1; nothing for other names.
std::optional<GptShape> gpt_preset(std::string_view name);

// kInvalidArgument with a sentence that names the number at fault.
Status validate(const GptShape& shape);

}  // namespace sluice::engine
