// LoraRecipe: the adapters that a run trains instead of the model itself. They are pairs of thin
// matrices added to some of its products (Hu et al., "LoRA: Low-Rank Adaptation of Large Language
// Models", 2021). A product of weight W [out, in] becomes W x + scale * B (A x), with A [rank, in]
// and B [out, rank], as in PEFT. Without LibTorch.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "offload/codec_tables.h"

namespace sluice::engine {

inline constexpr std::int64_t kMostAdapterRank = 1 << 12;
// The target that is all experts of a block: one adapter of their gates and ups, and one of their
// downs, of this rank for each expert. Without dropout. "all-linear" leaves them as they are.
inline constexpr std::string_view kExpertsTarget = "experts";

struct LoraRecipe {
  std::int64_t rank = 0;  // 0: no adapters; the model itself is trained
  double alpha = 0;
  bool rank_stabilised = false;  // Kalajdzievski, "A Rank Stabilization Scaling Factor", 2023
  double dropout = 0;            // on the input of an adapter, in training
  // The frozen matrices: 16, 8 or 4 (BlockCodec). The scales of 4 may have 8.
  std::int64_t base_bits = 16;
  bool double_quant = false;
  std::vector<std::string> targets;  // from ModelFamily::adapter_targets(), in that order

  bool exists() const { return rank > 0; }
  bool adapts_experts() const {
    return std::find(targets.begin(), targets.end(), kExpertsTarget) != targets.end();
  }
  double scale() const {
    const auto r = static_cast<double>(rank);
    return alpha / (rank_stabilised ? std::sqrt(r) : r);
  }
  // kNone also for bits that no codec has (has_base_codec()).
  offload::BlockCodec base_codec() const {
    for (const offload::CodecRow& row : offload::kCodecs)
      if (static_cast<std::int64_t>(row.bits) == base_bits && (row.group > 0) == double_quant)
        return row.codec;
    return offload::BlockCodec::kNone;
  }
  bool has_base_codec() const {
    return base_bits == 16 ? !double_quant : base_codec() != offload::BlockCodec::kNone;
  }
  bool operator==(const LoraRecipe&) const = default;
};

}  // namespace sluice::engine
