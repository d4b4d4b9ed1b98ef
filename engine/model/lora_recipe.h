// LoraRecipe: the adapters that a run trains instead of the model itself. They are pairs of thin
// matrices added to some of its products (Hu et al., "LoRA: Low-Rank Adaptation of Large Language
// Models", 2021). A product of weight W [out, in] becomes W x + scale * B (A x), with A [rank, in]
// and B [out, rank], as in PEFT. Without LibTorch.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

namespace sluice::engine {

inline constexpr std::int64_t kMostAdapterRank = 1 << 12;

struct LoraRecipe {
  std::int64_t rank = 0;  // 0: no adapters; the model itself is trained
  double alpha = 0;
  bool rank_stabilised = false;      // Kalajdzievski, "A Rank Stabilization Scaling Factor", 2023
  double dropout = 0;                // on the input of an adapter, in training
  std::int64_t base_bits = 16;       // the frozen matrices: 16, or 8 (Int8Blocks)
  std::vector<std::string> targets;  // from ModelFamily::adapter_targets(), in that order

  bool exists() const { return rank > 0; }
  double scale() const {
    const auto r = static_cast<double>(rank);
    return alpha / (rank_stabilised ? std::sqrt(r) : r);
  }
  bool operator==(const LoraRecipe&) const = default;
};

}  // namespace sluice::engine
