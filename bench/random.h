// Random: splitmix64, a counter and a finaliser. 1 ns per number, seedable, good enough to choose
// offsets and directions.
#pragma once

#include <cstdint>

namespace sluice::bench {

inline constexpr std::uint64_t kGolden = 0x9e3779b97f4a7c15;

// A bijection of 64 bits in which every bit of the result depends on every bit of x.
constexpr std::uint64_t mix64(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(mix64(seed + kGolden)) {}

  std::uint64_t next() { return mix64(state_ += kGolden); }
  bool coin() { return (next() >> 63) != 0; }
  // 0 .. bound - 1; the bias is bound / 2^64.
  std::uint64_t below(std::uint64_t bound) {
    __extension__ using Wide = unsigned __int128;
    return static_cast<std::uint64_t>((static_cast<Wide>(next()) * bound) >> 64);
  }

 private:
  std::uint64_t state_;
};

}  // namespace sluice::bench
