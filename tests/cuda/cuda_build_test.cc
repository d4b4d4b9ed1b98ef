// CUDA code is built with flags that preserve the host's arithmetic: both sides give the same bits.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "tests/cuda/two_roundings.h"

namespace sluice {
namespace {

struct Operands {
  std::vector<float> a, b, c;
};

// Sums that nearly cancel: the rounding of the product decides every remaining bit.
Operands cancelling_operands(std::size_t count) {
  std::mt19937 random(20260101);
  std::uniform_real_distribution<float> uniform(1.0F, 2.0F);
  std::uniform_real_distribution<float> nearly_one(1.0F, 1.0F + 0x1p-10F);
  Operands operands;
  for (std::size_t i = 0; i < count; ++i) {
    const float a = uniform(random);
    const float b = uniform(random);
    operands.a.push_back(a);
    operands.b.push_back(b);
    operands.c.push_back(-a * b * nearly_one(random));
  }
  return operands;
}

TEST(CudaBuild, RoundsAProductBeforeItsSumAsTheHostDoes) {
  if (const std::string reason = why_no_gpu(); !reason.empty()) {
    GTEST_SKIP() << "no GPU to run the kernel on (" << reason << "); it was compiled";
  }
  constexpr std::size_t kCount = 100'000;
  const Operands operands = cancelling_operands(kCount);
  std::vector<float> out(kCount);
  ASSERT_STREQ(multiply_add_on_gpu(operands.a.data(), operands.b.data(), operands.c.data(),
                                   out.data(), kCount),
               "");
  std::size_t fused_differs = 0;
  for (std::size_t i = 0; i < kCount; ++i) {
    const float expected = operands.a[i] * operands.b[i] + operands.c[i];
    const float fused = std::fma(operands.a[i], operands.b[i], operands.c[i]);
    fused_differs += expected != fused;
    ASSERT_EQ(std::bit_cast<std::uint32_t>(out[i]), std::bit_cast<std::uint32_t>(expected))
        << "element " << i << ": " << operands.a[i] << " * " << operands.b[i] << " + "
        << operands.c[i];
  }
  EXPECT_GT(fused_differs, kCount / 2) << "the operands do not tell the two apart";
}

}  // namespace
}  // namespace sluice
