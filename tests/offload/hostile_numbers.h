// Numbers that find mistakes: ordinary ones as in training, arbitrary bit patterns, and the values
// at which arithmetic changes its rules. They are seeded, so a failing test prints its seed.
#pragma once

#include <array>
#include <bit>
#include <cstdint>

namespace sluice::offload {

class HostileNumbers {
 public:
  explicit HostileNumbers(std::uint64_t seed) : state_(seed) {}

  std::uint64_t bits() {  // splitmix64
    std::uint64_t x = state_ += 0x9e3779b97f4a7c15;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return x ^ (x >> 31);
  }

  // Magnitudes from 2^-20 to 2^-4, either sign: weights and gradients.
  float ordinary() {
    const std::uint64_t x = bits();
    const auto exponent = static_cast<std::uint32_t>(107 + (x >> 32) % 16);
    return std::bit_cast<float>(static_cast<std::uint32_t>(x & 0x807FFFFF) | exponent << 23);
  }

  // Mostly ordinary; one in eight is an arbitrary bit pattern, one in eight is special.
  float hostile() {
    const std::uint64_t x = bits();
    if (x % 8 == 0) return std::bit_cast<float>(static_cast<std::uint32_t>(x >> 32));
    if (x % 8 == 1) return special(x >> 8);
    return ordinary();
  }

  std::uint16_t hostile_half() {
    const std::uint64_t x = bits();
    // One in four has a small exponent, where fp16 has denormals and bf16 tiny numbers.
    return static_cast<std::uint16_t>(x % 4 == 0 ? (x >> 32) & 0x83FF : x >> 32);
  }

 private:
  static float special(std::uint64_t x) {
    static constexpr std::array<std::uint32_t, 20> kBits = {
        0x00000000,              // zero
        0x00000001, 0x007FFFFF,  // the smallest and the largest denormal
        0x00800000, 0x00800001,  // the smallest normal numbers
        0x00FFFFFF, 0x01000000,  // and around twice that
        0x1F800000, 0x20000000,  // 2^-64, 2^-63: their squares are around the smallest normal
        0x33800000, 0x387FC000,  // 2^-24; fp16's largest denormal
        0x3F7FFFFF, 0x3F800000,  // around 1
        0x477FEFFF, 0x477FF000,  // around where fp16 overflows
        0x7F7F7FFF, 0x7F7F8000,  // around where bf16 overflows
        0x7F7FFFFF, 0x7F800000,  // the largest number, infinity
        0x7FC00000,              // NaN
    };
    static constexpr std::array<std::uint32_t, 4> kNans = {0x7F800001, 0x7FBFFFFF, 0x7FC12345,
                                                           0x7FFFFFFF};
    const auto sign = static_cast<std::uint32_t>(x & 1) << 31;
    const std::uint64_t which = (x >> 1) % (kBits.size() + kNans.size());
    return std::bit_cast<float>(
        sign | (which < kBits.size() ? kBits[which] : kNans[which - kBits.size()]));
  }

  std::uint64_t state_;
};

}  // namespace sluice::offload
