// BlockCodec: frozen parameters in 8 or 4 bits, with a scale for each block, for the base model
// under adapters. They take a half or a quarter of the memory and traffic of 16 bits. The
// codecs are the rows of codec_tables.h.
//
// A block is consecutive elements of a unit's flat order. Parameters begin at multiples of a block
// there, so no block contains two of them. The scale s follows from the block's largest magnitude.
//
// int8: linear and symmetric (blockwise absmax; Dettmers et al., "8-bit Optimizers via Block-wise
// Quantization", 2021, section 2). With s = absmax / 127 in fp32, a number x becomes q = x / s
// rounded to nearest, ties to even. Its value is q * s in fp32, within s / 2 of x.
//
// nf4: with s = absmax, x becomes the code point next to x * (1 / s); between two, the lower one.
// Its value is the code point times s in fp32. The first of two numbers is in a byte's high half.
// With double quantisation s - offset is divided by the group's largest magnitude and becomes the
// next dynamic8 code, between two the even one, as bitsandbytes' CUDA kernels do. (Its CPU backend
// first rounds to one of 65,536 steps.)
//
// In each codec a block of zeros has values of 0, and values are then rounded to the compute type.
//
// Layout of a unit's bytes: the codes of its matrices, which come first in its flat order. Then
// their scales; the scales' groups; and its vectors (norms, biases) in the compute type.
//
// Threads: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "offload/codec_tables.h"

namespace sluice::offload {

// The bytes of a unit.
struct EncodedUnit {
  BlockCodec codec = BlockCodec::kInt8;
  std::uint64_t elements = 0;     // encoded: the unit's first elements, in whole blocks
  std::uint64_t groups = 0;       // of scales
  std::uint64_t plain = 0;        // elements after them, in the compute type
  std::uint64_t plain_bytes = 0;  // size of one such element

  constexpr std::uint64_t code_bytes(std::uint64_t count) const {
    return count * row_of(codec).bits / 8;
  }
  constexpr std::uint64_t scale_bytes(std::uint64_t count) const {
    return count / row_of(codec).block * row_of(codec).scale_bytes;
  }
  constexpr std::uint64_t scales_offset() const { return code_bytes(elements); }
  constexpr std::uint64_t groups_offset() const {
    constexpr std::uint64_t kAligned = sizeof(float);
    return (scales_offset() + scale_bytes(elements) + kAligned - 1) / kAligned * kAligned;
  }
  constexpr std::uint64_t plain_offset() const {
    return groups_offset() + groups * sizeof(ScaleGroup);
  }
  constexpr std::uint64_t bytes() const { return plain_offset() + plain * plain_bytes; }
};

// Elements of a unit whose groups of scales are consecutive from the first element on.
struct EncodedRun {
  std::uint64_t first = 0;  // in the unit's flat order
  std::uint64_t elements = 0;
  std::uint64_t first_group = 0;
};

// Where the numbers of a run are.
template <typename Byte, typename Group>
struct EncodedPlaces {
  Byte* codes = nullptr;
  Byte* scales = nullptr;   // aligned for fp32, unless there are groups
  Group* groups = nullptr;  // null if the codec has none

  static EncodedPlaces of(const EncodedUnit& unit, const EncodedRun& run, Byte* bytes) {
    return {bytes + unit.code_bytes(run.first),
            bytes + unit.scales_offset() + unit.scale_bytes(run.first),
            reinterpret_cast<Group*>(bytes + unit.groups_offset()) + run.first_group};
  }
};
using EncodedOut = EncodedPlaces<std::byte, ScaleGroup>;
using EncodedIn = EncodedPlaces<const std::byte, const ScaleGroup>;

// What double quantisation has to know of a parameter.
struct ScaleMean {
  float offset = 0;            // the mean of the parameter's absmax
  std::uint64_t elements = 0;  // of these values, those before the gap after the parameter
};

// Encodes whole blocks, which begin at a group. Returns false if a number is not finite, or so
// large that its block has no finite scale; the output is then unusable.
[[nodiscard]] bool encode(BlockCodec codec, std::span<const float> values, const ScaleMean& mean,
                          const EncodedOut& to);
// The sum of the blocks' largest magnitudes.
double sum_of_absmax(BlockCodec codec, std::span<const float> values);

// The values of whole blocks, from `first_block` of `from` on.
void decode(BlockCodec codec, const EncodedIn& from, std::uint64_t first_block,
            std::span<float> values);

}  // namespace sluice::offload
