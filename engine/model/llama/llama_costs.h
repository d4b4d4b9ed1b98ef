// The costs of the passes of a Llama's units, from its shape alone. Without LibTorch.
#pragma once

#include <cstdint>
#include <memory>

#include "engine/model/llama/llama_shape.h"
#include "engine/model/lora_recipe.h"
#include "engine/model/unit_costs.h"

namespace sluice::engine {

// With adapters, no other parameter has a gradient.
std::shared_ptr<const UnitKind> llama_embedding_kind(const LlamaShape& shape,
                                                     const LoraRecipe& lora);
std::shared_ptr<const UnitKind> llama_block_kind(const LlamaShape& shape, const LoraRecipe& lora,
                                                 bool windowed);
std::shared_ptr<const UnitKind> llama_head_kind(const LlamaShape& shape, const LoraRecipe& lora,
                                                std::int64_t padded_vocab);

}  // namespace sluice::engine
