// Random numbers as a function of (seed, index). There is no state, so any part of a sequence can
// be computed anywhere, in any order, repeatedly. Host and GPU compute the same bits.
//
// counter_bits is SplitMix64's output for the index-th state (Steele, Lea, Flood, "Fast Splittable
// Pseudorandom Number Generators", 2014), which passes BigCrush.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define SLUICE_HOST_DEVICE __host__ __device__
#else
#define SLUICE_HOST_DEVICE
#endif

namespace sluice::engine {

SLUICE_HOST_DEVICE constexpr std::uint64_t mix_bits(std::uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
  return z ^ (z >> 31);
}

SLUICE_HOST_DEVICE constexpr std::uint64_t counter_bits(std::uint64_t seed, std::uint64_t index) {
  return mix_bits(seed + (index + 1) * 0x9E3779B97F4A7C15U);
}

// A seed that depends on all values added so far, in order.
constexpr std::uint64_t extend_seed(std::uint64_t seed, std::uint64_t value) {
  return counter_bits(mix_bits(seed), value);
}

}  // namespace sluice::engine
