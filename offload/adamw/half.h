// Conversion between fp32 and bf16 or fp16 numbers, given as bits, in integer arithmetic: exact in
// any rounding mode. This is the reference for the vector kernels, which use instructions.
//
// Rounding is to nearest, ties to even, as in torch; overflow gives an infinity, and denormals are
// kept. A NaN becomes its type's canonical NaN, whatever its sign and payload.
#pragma once

#include <bit>
#include <cstdint>

namespace sluice::offload {

inline constexpr std::uint32_t kCanonicalNan = 0x7FC00000;

constexpr std::uint32_t canonical_nan_bits(std::uint32_t bits) {
  return (bits & 0x7FFFFFFF) > 0x7F800000 ? kCanonicalNan : bits;
}

constexpr float float_from_bf16(std::uint16_t half) {
  return std::bit_cast<float>(std::uint32_t{half} << 16);
}

constexpr std::uint16_t bf16_from_float(float value) {
  const std::uint32_t bits = canonical_nan_bits(std::bit_cast<std::uint32_t>(value));
  return static_cast<std::uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

constexpr float float_from_fp16(std::uint16_t half) {
  const std::uint32_t sign = (half & 0x8000U) << 16;
  const std::uint32_t exponent = (half >> 10) & 0x1F;
  std::uint32_t mantissa = half & 0x3FF;
  if (exponent == 0x1F)
    return std::bit_cast<float>(mantissa != 0 ? kCanonicalNan : sign | 0x7F800000);
  if (exponent != 0) return std::bit_cast<float>(sign | (exponent + 112) << 23 | mantissa << 13);
  if (mantissa == 0) return std::bit_cast<float>(sign);
  // A denormal, mantissa * 2^-24: normal as fp32 once its leading one is the hidden bit.
  const int shift = std::countl_zero(mantissa) - 21;
  mantissa = (mantissa << shift) & 0x3FF;
  return std::bit_cast<float>(sign | static_cast<std::uint32_t>(113 - shift) << 23 |
                              mantissa << 13);
}

constexpr std::uint16_t fp16_from_float(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000;
  const std::uint32_t magnitude = bits & 0x7FFFFFFF;
  if (magnitude > 0x7F800000) return 0x7E00;
  const auto with_sign = [sign](std::uint32_t half) {
    return static_cast<std::uint16_t>(sign | half);
  };
  if (magnitude >= 0x477FF000) return with_sign(0x7C00);  // 65520 and more
  if (magnitude >= 0x38800000)                            // normal: 2^-14 and more
    return with_sign((magnitude + 0xFFF + ((magnitude >> 13) & 1) - 0x38000000) >> 13);
  // A multiple of 2^-24: the mantissa (hidden bit included), shifted and rounded.
  const std::uint32_t shift = 126 - (magnitude >> 23);
  if (shift > 24) return with_sign(0);
  const std::uint32_t mantissa = (magnitude & 0x7FFFFF) | 0x800000;
  const std::uint32_t rest = mantissa & ((1U << shift) - 1);
  const std::uint32_t tie = 1U << (shift - 1);
  const std::uint32_t half = mantissa >> shift;
  return with_sign(half + (rest > tie || (rest == tie && (half & 1) != 0) ? 1 : 0));
}

}  // namespace sluice::offload
