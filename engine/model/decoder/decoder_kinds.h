// The costs of a decoder's units (unit_costs.h), from its spec. Without LibTorch.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "engine/model/decoder/block_spec.h"
#include "engine/model/lora_recipe.h"
#include "engine/model/unit_costs.h"

namespace sluice::engine {

// With adapters, no other parameter has a gradient.
std::shared_ptr<const UnitKind> embedding_kind(const DecoderSpec& spec, const LoraRecipe& lora);
// `name`: see UnitKind.
std::shared_ptr<const UnitKind> block_kind(std::string_view name, const BlockSpec& spec,
                                           const LoraRecipe& lora);
std::shared_ptr<const UnitKind> head_kind(const DecoderSpec& spec, const LoraRecipe& lora,
                                          std::int64_t padded_vocab);

}  // namespace sluice::engine
