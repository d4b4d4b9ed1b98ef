// Stochastic rounding of the moments to bf16: up or down, with probabilities that make the expected
// value exact. The kernels of every instruction set do this; the scalar one calls these functions.
//
//   store(x)       = as in adamw.h: no denormals, no -0, one NaN
//   round(x, r)    = upper 16 bits of (bits of store(x)) + r, where r is 16 random bits;
//                    never an infinity for a finite x: 0x7F7F or 0xFF7F instead
//
// So zeros, infinities, the NaN and all values that bf16 represents are unchanged for every r, and
// a moment that was widened is narrowed to itself. The sign never changes. Rounding is away from
// zero with a probability of (lower 16 bits) / 2^16.
//
// The random bits are a hash of the element's place in its unit, so no division of the state
// changes them: m takes the lower half, v the upper one. The hash is Christopher Wellons's
// lowbias32 (https://github.com/skeeto/hash-prospector), the 32-bit bijection with the smallest
// bias found for two multiplications. One key is added before it and the other in its middle: over
// a whole period each r occurs equally often. AVX2 has all its operations for 32-bit lanes.
// Elements 2^32 apart share their bits, which is far enough.
#pragma once

#include <bit>
#include <cfloat>
#include <cstdint>
#include <initializer_list>

#include "offload/adamw/adamw_arrays.h"
#include "offload/adamw/half.h"

namespace sluice::offload {

// What the random bits of one step depend on, in addition to the unit. `step`: AdamwOptions::step;
// if state is set, the last step before that.
struct MomentSeed {
  std::uint64_t run_seed = 0;
  std::int64_t step = 0;
};

// Applies SplitMix64's output function (Steele, Lea, Flood, "Fast Splittable Pseudorandom Number
// Generators", 2014) to one value after another. `unit`: its number in forward order.
constexpr MomentKeys moment_keys(const MomentSeed& seed, int unit) {
  constexpr std::uint64_t kPurpose = 0x6d6f'6d65'6e74'7331;  // used for nothing else with this seed
  std::uint64_t key = kPurpose;
  for (const std::uint64_t value :
       {seed.run_seed, static_cast<std::uint64_t>(seed.step), static_cast<std::uint64_t>(unit)}) {
    key = (key ^ value) + 0x9E3779B97F4A7C15U;
    key = (key ^ (key >> 30)) * 0xBF58476D1CE4E5B9U;
    key = (key ^ (key >> 27)) * 0x94D049BB133111EBU;
    key ^= key >> 31;
  }
  return {.first = static_cast<std::uint32_t>(key),
          .second = static_cast<std::uint32_t>(key >> 32)};
}

// The random bits of one element of the unit: m's in the lower half, v's in the upper one.
constexpr std::uint32_t moment_bits(const MomentKeys& keys, std::uint64_t element) {
  std::uint32_t x = static_cast<std::uint32_t>(element) + keys.first;
  x ^= x >> 16;
  x *= 0x7FEB352DU;
  x ^= x >> 15;
  x += keys.second;
  x *= 0x846CA68BU;
  return x ^ (x >> 16);
}

constexpr std::uint32_t kLargestBf16 = 0x7F7F0000;  // from here up nothing is added

// The bits of store(x), for any x.
constexpr std::uint32_t stored_moment_bits(std::uint32_t bits) {
  constexpr std::uint32_t kSmallestNormal = 0x00800000;
  return (bits & 0x7FFFFFFF) < kSmallestNormal ? 0 : canonical_nan_bits(bits);
}

// Rounds x after store(); `random` is below 2^16.
constexpr std::uint16_t round_moment(float stored, std::uint32_t random) {
  const auto bits = std::bit_cast<std::uint32_t>(stored);
  const bool keeps = (bits & 0x7FFFFFFF) >= kLargestBf16;
  return static_cast<std::uint16_t>((bits + (keeps ? 0 : random)) >> 16);
}

}  // namespace sluice::offload
