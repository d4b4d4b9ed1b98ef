// The fp32 master weight as two 16-bit halves: `hi` is the bf16 parameter that the GPU computes
// with, and `lo` holds the remaining bits. Together they hold the fp32 value without loss, so the
// parameter is never stored twice.
//
//   hi = upper 16 bits + bit 15: the nearest bf16, ties away from zero
//   lo = lower 16 bits, which are the remainder bits - (hi << 16) as a two's complement number
//
// Ties go away from zero rather than to even, because only then do hi and lo alone determine the
// direction of the rounding. A NaN becomes the canonical one first (the rounding would turn NaNs
// such as 0xFFFF8000 into -0). A master beyond bf16's largest value shows as an infinity in `hi`;
// the pair still holds its value.
#pragma once

#include <bit>
#include <cstdint>

#include "offload/adamw/half.h"

namespace sluice::offload {

struct SplitMaster {
  std::uint16_t hi;
  std::uint16_t lo;
};

constexpr SplitMaster split_master(float value) {
  const std::uint32_t bits = canonical_nan_bits(std::bit_cast<std::uint32_t>(value));
  return {.hi = static_cast<std::uint16_t>((bits >> 16) + ((bits >> 15) & 1)),
          .lo = static_cast<std::uint16_t>(bits & 0xFFFF)};
}

constexpr float join_master(SplitMaster halves) {
  const std::uint32_t rounded_up = halves.lo >> 15;
  return std::bit_cast<float>((std::uint32_t{halves.hi} - rounded_up) << 16 | halves.lo);
}

}  // namespace sluice::offload
