#include "offload/adamw/split_master.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <thread>
#include <vector>

#include "offload/adamw/half.h"
#include "tests/offload/hostile_numbers.h"

namespace sluice::offload {
namespace {

std::uint32_t bits_of(float value) { return std::bit_cast<std::uint32_t>(value); }

// Everything that split_master.h promises for one value.
bool split_is_right(std::uint32_t bits) {
  const auto value = std::bit_cast<float>(bits);
  const SplitMaster halves = split_master(value);
  const float joined = join_master(halves);
  const float hi = float_from_bf16(halves.hi);
  if (std::isnan(value))
    return bits_of(joined) == 0x7FC00000 && halves.hi == 0x7FC0 && halves.lo == 0;
  if (bits_of(joined) != bits) return false;
  if (std::signbit(hi) != std::signbit(value) || std::isnan(hi)) return false;
  if (std::isinf(value)) return hi == value;
  // Nearest: compares the bf16 numbers below and above in magnitude, in double; ties go up. The
  // number above bf16's largest is 2^128, and stands for infinity.
  const auto magnitude = [](std::uint32_t upper) {
    return upper == 0x7F80 ? std::ldexp(1.0, 128)
                           : double{float_from_bf16(static_cast<std::uint16_t>(upper))};
  };
  const std::uint32_t below = (bits & 0x7FFFFFFF) >> 16;
  const double x = std::fabs(double{value});
  const bool up = x - magnitude(below) >= magnitude(below + 1) - x;
  if ((halves.hi & 0x7FFFU) != below + (up ? 1 : 0)) return false;
  // torch's rounding differs only on ties.
  const bool tie = x - magnitude(below) == magnitude(below + 1) - x;
  return tie || bf16_from_float(value) == halves.hi;
}

TEST(SplitMaster, HoldsNumbersWithoutLossAndRoundsToTheNearest) {
  HostileNumbers numbers(1);
  for (int i = 0; i < 1'000'000; ++i) {
    const std::uint32_t bits = bits_of(numbers.hostile());
    ASSERT_TRUE(split_is_right(bits)) << std::hex << bits;
  }
  for (std::uint32_t upper = 0; upper < 0x10000; ++upper)
    for (const std::uint32_t lower : {0U, 1U, 0x7FFFU, 0x8000U, 0x8001U, 0xFFFFU})
      ASSERT_TRUE(split_is_right(upper << 16 | lower)) << std::hex << (upper << 16 | lower);
}

TEST(SplitMaster, ShowsAMasterBeyondBf16AsInfinityAndKeepsIt) {
  const float huge = std::bit_cast<float>(0x7F7FFFFFU);
  EXPECT_EQ(split_master(huge).hi, 0x7F80);
  EXPECT_EQ(join_master(split_master(huge)), huge);
}

TEST(LongSplitMaster, HoldsEveryBitPatternWithoutLoss) {
  const auto workers = std::max(1U, std::thread::hardware_concurrency());
  std::atomic<std::uint64_t> wrong{0};
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < workers; ++t)
    threads.emplace_back([&, t] {
      for (std::uint64_t bits = t; bits < std::uint64_t{1} << 32; bits += workers)
        if (!split_is_right(static_cast<std::uint32_t>(bits))) ++wrong;
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0U);
}

}  // namespace
}  // namespace sluice::offload
