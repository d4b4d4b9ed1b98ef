#include "engine/weights/dtype.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

namespace sluice::engine {
namespace {

template <typename Stored>
std::vector<Stored> stored_as(DType dtype, const std::vector<float>& values) {
  std::vector<Stored> stored(values.size());
  from_floats(dtype, values, std::as_writable_bytes(std::span(stored)));
  return stored;
}

template <typename Stored>
std::vector<float> loaded_from(DType dtype, const std::vector<Stored>& stored) {
  std::vector<float> values(stored.size());
  to_floats(dtype, std::as_bytes(std::span(stored)), values);
  return values;
}

constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(DType, RoundsToNearestTiesToEven) {
  // 1 + 2^-8 and 1 + 3 * 2^-8 are half-way for bf16; a little more is not.
  EXPECT_EQ(stored_as<std::uint16_t>(
                DType::kBF16, {1.00390625F, 1.01171875F, 1.00390637F, -1.00390625F, 3.4e38F}),
            (std::vector<std::uint16_t>{0x3F80, 0x3F82, 0x3F81, 0xBF80, 0x7F80}));
  // 1 + 2^-11 is half-way for fp16; 65520 is the first number that is too large; 2^-24 the least.
  EXPECT_EQ(stored_as<std::uint16_t>(DType::kF16, {1.00048828125F, 1.00146484375F, 65519.99F, 65520,
                                                   5.9604645e-8F, -0.0F}),
            (std::vector<std::uint16_t>{0x3C00, 0x3C02, 0x7BFF, 0x7C00, 0x0001, 0x8000}));
  // For fp32, 1 + 2^-24 is half-way.
  EXPECT_EQ(loaded_from<double>(DType::kF64, {1 + 0x1p-24, 1 + 0x3p-24, 1e300, -0.0}),
            (std::vector<float>{1, 1 + 0x1p-22F, kInfinity, 0}));
}

TEST(DType, KeepsEveryBitOfFp32) {
  const std::vector<std::uint32_t> bits = {0x7FC12345, 0xFF800001, 0x80000000, 1, 0x3F800001};
  std::vector<float> values;
  for (const std::uint32_t pattern : bits) values.push_back(std::bit_cast<float>(pattern));
  EXPECT_EQ(stored_as<std::uint32_t>(DType::kF32, values), bits);
  const auto loaded = loaded_from(DType::kF32, bits);
  EXPECT_EQ(std::memcmp(loaded.data(), bits.data(), bits.size() * sizeof(float)), 0);
}

TEST(DType, ComesBackFromEveryHalfItCanHold) {
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    std::vector<std::uint16_t> all(1 << 16);
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint16_t>(i);
    const auto values = loaded_from(dtype, all);
    const auto back = stored_as<std::uint16_t>(dtype, values);
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (std::isnan(values[i])) {
        EXPECT_EQ(back[i], dtype == DType::kF16 ? 0x7E00 : 0x7FC0);
      } else {
        ASSERT_EQ(back[i], all[i]) << to_string(dtype);
      }
    }
  }
}

TEST(DType, HasTheFormatsNames) {
  for (const char* name : {"BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "I16", "U16", "F16", "BF16",
                           "I32", "U32", "F32", "I64", "U64", "F64"}) {
    const auto dtype = parse_dtype(name);
    ASSERT_TRUE(dtype) << name;
    EXPECT_EQ(to_string(*dtype), name);
  }
  EXPECT_FALSE(parse_dtype("f32"));
  EXPECT_FALSE(parse_dtype(""));
  EXPECT_EQ(element_bytes(DType::kBF16), 2U);
  EXPECT_EQ(element_bytes(DType::kF64), 8U);
  EXPECT_EQ(element_bytes(DType::kF8E4M3), 1U);
}

}  // namespace
}  // namespace sluice::engine
