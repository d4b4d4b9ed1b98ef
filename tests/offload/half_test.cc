// Compares integer conversions with the definition, the nearest neighbour, computed in double.
#include "offload/adamw/half.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/offload/hostile_numbers.h"

namespace sluice::offload {
namespace {

double fp16_value(std::uint32_t half) {  // by its definition; 0x7C00 stands for 2^16
  const std::uint32_t exponent = (half >> 10) & 0x1F;
  const double mantissa = half & 0x3FF;
  return exponent == 0 ? std::ldexp(mantissa, -24)
                       : std::ldexp(1024 + mantissa, static_cast<int>(exponent) - 25);
}

double bf16_value(std::uint32_t half) {  // 0x7F80 stands for 2^128
  const std::uint32_t exponent = half >> 7;
  const double mantissa = half & 0x7F;
  return exponent == 0 ? std::ldexp(mantissa, -133)
                       : std::ldexp(128 + mantissa, static_cast<int>(exponent) - 134);
}

// Whether `half` is nearer to |value| than its neighbours, and the even one on a tie.
template <typename ValueOf>
bool is_nearest_even(double value, std::uint32_t half, std::uint32_t infinity, ValueOf value_of) {
  const double error = std::fabs(value_of(half) - value);
  const auto better = [&](std::uint32_t other) {
    const double others = std::fabs(value_of(other) - value);
    return others < error || (others == error && (other & 1) == 0);
  };
  if (half > 0 && better(half - 1)) return false;
  return half == infinity || !better(half + 1);
}

TEST(Half, ReadsEveryFp16Number) {
  for (std::uint32_t half = 0; half < 0x7C00; ++half) {
    ASSERT_EQ(float_from_fp16(static_cast<std::uint16_t>(half)), fp16_value(half)) << half;
    ASSERT_EQ(float_from_fp16(static_cast<std::uint16_t>(half | 0x8000)), -fp16_value(half));
  }
  EXPECT_TRUE(std::signbit(float_from_fp16(0x8000)));
  EXPECT_EQ(float_from_fp16(0x7C00), INFINITY);
  EXPECT_EQ(float_from_fp16(0xFC00), -INFINITY);
  for (const std::uint16_t nan : {0x7C01, 0x7E00, 0xFFFF})
    EXPECT_EQ(std::bit_cast<std::uint32_t>(float_from_fp16(nan)), kCanonicalNan);
}

TEST(Half, RoundsToTheNearestAndToEvenOnTies) {
  HostileNumbers numbers(3);
  const auto check = [](float value) {
    const std::uint32_t fp16 = fp16_from_float(value);
    const std::uint32_t bf16 = bf16_from_float(value);
    if (std::isnan(value)) return fp16 == 0x7E00 && bf16 == 0x7FC0;
    if ((fp16 >> 15 != 0) != std::signbit(value) || fp16 >> 15 != bf16 >> 15) return false;
    const double magnitude = std::fabs(double{value});
    if (std::isinf(value)) return (fp16 & 0x7FFF) == 0x7C00 && (bf16 & 0x7FFF) == 0x7F80;
    return is_nearest_even(magnitude, fp16 & 0x7FFF, 0x7C00, fp16_value) &&
           is_nearest_even(magnitude, bf16 & 0x7FFF, 0x7F80, bf16_value);
  };
  for (int i = 0; i < 2'000'000; ++i) {
    const float value = numbers.hostile();
    ASSERT_TRUE(check(value)) << std::hexfloat << value;
  }
  // Every fp16 number, the midpoint to the next one, and the floats next to both.
  for (std::uint32_t half = 0; half < 0x7C00; ++half)
    for (const double exact : {fp16_value(half), (fp16_value(half) + fp16_value(half + 1)) / 2}) {
      const auto value = static_cast<float>(exact);
      for (const float near : {value, std::nextafterf(value, 0), std::nextafterf(value, 1e9F)})
        ASSERT_TRUE(check(near)) << std::hexfloat << near;
    }
}

}  // namespace
}  // namespace sluice::offload
