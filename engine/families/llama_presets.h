// The named shapes of the Llama family. Without LibTorch.
#pragma once

#include <string_view>
#include <vector>

#include "engine/model/model_family.h"

namespace sluice::engine {

inline constexpr std::string_view kLlamaFamily = "llama";

// The classes of transformers, by the number "architecture", which checkpoints store.
inline constexpr std::string_view kLlamaArchitectures =
    "llama|mistral|qwen2|qwen3|ministral|qwen3_moe|mixtral|gpt_oss|phi3|smollm3";

std::vector<NamedShape> llama_presets();

}  // namespace sluice::engine
