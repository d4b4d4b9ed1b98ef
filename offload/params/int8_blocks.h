// Int8Blocks: frozen parameters in 8 bits, with a scale for each block, for the base model under
// adapters: half the memory and half the traffic of 16 bits. Quantisation is symmetric and linear,
// scaled by a block's largest magnitude. This is blockwise absmax (Dettmers et al., "8-bit
// Optimizers via Block-wise Quantization", 2021, section 2); QLoRA stores its base the same way in
// 4 bits.
//
// A block is kInt8Block consecutive elements of a unit's flat order. Parameters begin at multiples
// of kInt8Block there, so no block contains two of them. With s = absmax / 127 in fp32, a number x
// becomes q = x / s rounded to nearest, ties to even. Its value is then q * s in fp32, within s / 2
// of x (and then rounded to the compute type). A block of zeros has s = 0.
//
// Layout of a unit's bytes: the quantised matrices, which come first in its flat order; their
// scales; then its vectors (norms, biases) in the compute type.
//
// Threads: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace sluice::offload {

inline constexpr std::uint64_t kInt8Block = 128;

struct Int8Blocks {
  std::uint64_t elements = 0;     // in 8 bits: the unit's first elements, in whole blocks
  std::uint64_t plain = 0;        // elements after them, in the compute type
  std::uint64_t plain_bytes = 0;  // size of one such element

  constexpr std::uint64_t scales_offset() const { return elements; }
  constexpr std::uint64_t plain_offset() const {
    return elements + elements / kInt8Block * sizeof(float);
  }
  constexpr std::uint64_t bytes() const { return plain_offset() + plain * plain_bytes; }
};

// Quantises whole blocks. Returns false if a number is not finite, or so large that its block has
// no finite scale; the output is then unusable.
[[nodiscard]] bool quantise_int8(std::span<const float> values, std::int8_t* quantised,
                                 float* scales);
// `values` has the same length.
void dequantise_int8(const std::int8_t* quantised, const float* scales, std::span<float> values);

}  // namespace sluice::offload
