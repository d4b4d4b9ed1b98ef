// Fp8Recipe: whether a block's products are computed in 8-bit floating-point numbers. Without
// LibTorch.
#pragma once

#include <algorithm>
#include <cstdint>

namespace sluice::engine {

// Concerns the products of a block with its matrices, and no others: norms, a router, experts, the
// embedding, the head and adapters keep the activations' dtype. Weights and activations become
// e4m3, the gradients of outputs e5m2 (Micikevicius et al., "FP8 formats for deep learning", 2022).
// Each matrix is scaled by its own largest number at the time, so nothing outlives a pass.
struct Fp8Recipe {
  bool enabled = false;
  bool wide_weight_gradients = false;  // computed from the activations' dtype

  bool operator==(const Fp8Recipe&) const = default;
};

// The widths of a product must be multiples of this.
inline constexpr std::int64_t kFp8Multiple = 16;
constexpr bool divides_fp8(std::int64_t in, std::int64_t out) {
  return in % kFp8Multiple == 0 && out % kFp8Multiple == 0;
}

// Gradients of weights are computed in pieces of so many rows: 32 MiB of fp32.
constexpr std::int64_t fp8_piece_rows(std::int64_t columns) {
  constexpr std::int64_t kNumbers = std::int64_t{8} << 20;
  constexpr std::int64_t kTile = 128;
  return std::max(kNumbers / columns / kTile, std::int64_t{1}) * kTile;
}

}  // namespace sluice::engine
