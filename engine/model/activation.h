// Activation: the function between the two products of a feed-forward layer. Without LibTorch.
#pragma once

#include <cstdint>

namespace sluice::engine {

// Under transformers' names: gelu_new (by tanh), gelu (by erf, exact), relu, silu. Checkpoints
// store the index, so the list only grows at its end.
enum class Activation : std::uint8_t { kGeluTanh, kGelu, kRelu, kSilu };

}  // namespace sluice::engine
