// Int8Blocks: frozen parameters in 8 bits and a scale for each block of them, for a base that
// adapters are trained beside: half the memory and half the traffic of 16 bits. Symmetric, linear,
// by the largest magnitude of a block (blockwise absmax: Dettmers et al., "8-bit Optimizers via
// Block-wise Quantization", 2021, section 2; QLoRA keeps its base so in 4 bits).
//
// A block is kInt8Block consecutive elements of a unit's flat order, in which parameters begin at
// multiples of it, so that no block has two of them. With s = absmax / 127 in fp32, a number is
// q = x / s rounded to the nearest, ties to even, and comes back as q * s in fp32, within s / 2 of
// x (and then rounded to the type that is computed with). A block of zeros has s = 0.
//
// Where a unit's bytes lie: its matrices, which come first in its flat order, as bytes; their
// scales; then its vectors (norms, biases), as they are computed with.
//
// Threads: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace sluice::offload {

inline constexpr std::uint64_t kInt8Block = 128;

struct Int8Blocks {
  std::uint64_t elements = 0;     // in 8 bits: the first of the unit, in whole blocks
  std::uint64_t plain = 0;        // behind them
  std::uint64_t plain_bytes = 0;  // of one of those

  constexpr std::uint64_t scales_offset() const { return elements; }
  constexpr std::uint64_t plain_offset() const {
    return elements + elements / kInt8Block * sizeof(float);
  }
  constexpr std::uint64_t bytes() const { return plain_offset() + plain * plain_bytes; }
};

// Whole blocks. False where a number is not finite, or so large that its block has no scale; what
// was written is then worth nothing.
[[nodiscard]] bool quantise_int8(std::span<const float> values, std::int8_t* quantised,
                                 float* scales);
// `values` is of the same length.
void dequantise_int8(const std::int8_t* quantised, const float* scales, std::span<float> values);

}  // namespace sluice::offload
