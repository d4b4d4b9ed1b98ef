// What experts cost in addition to their products: rows are gathered by expert, computed, and
// summed again for each token. Without LibTorch.
#pragma once

#include <cstdint>

#include "engine/model/decoder/block_spec.h"
#include "engine/model/lora_recipe.h"
#include "engine/model/unit_costs.h"

namespace sluice::engine {

// Part of UnitKind::traffic(): routing, gathered rows and their sums; all 0 without experts.
Traffic experts_traffic(const BlockSpec& block, std::int64_t number_bytes);

struct ExpertsPeak {
  // Copies of the activation's width in its backward: more without a fused kernel.
  std::int64_t activated = 0;
  bool is_trained = true;  // weights have gradients
};
// Part of UnitKind::peak_bytes(): the experts' backward, in addition to what forward saved.
std::uint64_t experts_backward_bytes(const BlockSpec& block, const PassShape& pass,
                                     const PeakOptions& options, const ExpertsPeak& peak);

// Part of it: what adapters of experts take in addition.
std::uint64_t expert_adapter_bytes(const BlockSpec& block, const PassShape& pass,
                                   const LoraRecipe& lora);

}  // namespace sluice::engine
