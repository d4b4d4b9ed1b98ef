// Activation: the function between the two products of a feed-forward layer. Without LibTorch.
#pragma once

#include <cstdint>

namespace sluice::engine {

// Under transformers' names: gelu_new (by tanh), gelu (by erf, exact), relu, silu. Checkpoints
// store the index, so the list only grows at its end.
enum class Activation : std::uint8_t { kGeluTanh, kGelu, kRelu, kSilu };

// The gated middle of gpt-oss' experts: of a gate g, clamped from above, and an up u, clamped on
// both sides, g sigmoid(alpha g) (u + 1).
struct ClampedGate {
  double alpha = 0;
  double limit = 0;  // 0: another gate

  bool exists() const { return limit > 0; }
};

}  // namespace sluice::engine
