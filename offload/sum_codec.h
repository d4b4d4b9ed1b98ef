// SumCodec: gradient sums as ranks exchange them, in fp32 or quantised in blocks (qgZ: Wang et al.,
// "ZeRO++", 2023, section 3.3).
//
// A block of 128 numbers has one fp32 scale, its largest magnitude / 127 or / 7, and a signed code
// for each number, rounded to the nearest, ties to even. A block that is not finite decodes to NaN,
// so that an overflow is still seen. The bytes of a block are its scale, then its codes; two 4-bit
// codes share a byte, the first in its low half.
//
// Plain data and functions (CUDA code includes this file).
//
// Threads: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sluice::offload {

enum class SumCodec : std::uint8_t { kFp32, kInt4, kInt8 };

inline constexpr std::uint64_t kSumCodecBlock = 128;

constexpr std::uint64_t code_bits(SumCodec codec) {
  return codec == SumCodec::kFp32 ? 32 : codec == SumCodec::kInt8 ? 8 : 4;
}
constexpr float most_code(SumCodec codec) { return codec == SumCodec::kInt8 ? 127.0F : 7.0F; }
// Bytes of whole blocks.
constexpr std::uint64_t encoded_sum_bytes(SumCodec codec, std::uint64_t elements) {
  const std::uint64_t codes = elements * code_bits(codec) / 8;
  return codec == SumCodec::kFp32 ? codes : codes + elements / kSumCodecBlock * sizeof(float);
}

// Whole blocks, of int8 or int4: `elements` numbers, and encoded_sum_bytes().
void encode_sum(SumCodec codec, const float* values, std::uint64_t elements, std::byte* to);
void decode_sum(SumCodec codec, const std::byte* from, float* values, std::uint64_t elements);

}  // namespace sluice::offload
