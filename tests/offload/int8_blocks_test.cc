#include "offload/params/int8_blocks.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "aio/split_mix.h"

namespace sluice::offload {
namespace {

constexpr std::size_t kBlock = kInt8Block;

struct Quantised {
  std::vector<std::int8_t> numbers;
  std::vector<float> scales;
  std::vector<float> back;
};

Quantised quantised(const std::vector<float>& values) {
  Quantised all{std::vector<std::int8_t>(values.size()), std::vector<float>(values.size() / kBlock),
                std::vector<float>(values.size())};
  EXPECT_TRUE(quantise_int8(values, all.numbers.data(), all.scales.data()));
  dequantise_int8(all.numbers.data(), all.scales.data(), all.back);
  return all;
}

TEST(Int8Blocks, ComeBackWithinHalfAStepOfTheirBlock) {
  aio::SplitMix random(3);
  std::vector<float> values(64 * kBlock);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double size = std::pow(10.0, static_cast<double>(i / kBlock % 13) - 8);
    values[i] = static_cast<float>((static_cast<double>(random.below(2001)) - 1000) * size);
  }
  const Quantised all = quantised(values);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const float step = all.scales[i / kBlock];
    EXPECT_LE(std::abs(all.back[i] - values[i]), 0.5001F * step) << i;
    EXPECT_EQ(all.back[i], static_cast<float>(all.numbers[i]) * step) << i;
  }
}

TEST(Int8Blocks, AreOfOneScaleEachAndTheLargestReachesTheEnd) {
  std::vector<float> values(3 * kBlock, 0.0F);
  values[5] = -2.54F;              // an outlier among zeros
  values[6] = 0.01F;               // half a quantisation step: rounds to even
  values[7] = 0.03F;               // one and a half steps
  values[2 * kBlock + 1] = 1e-3F;  // next to a block of zeros
  const Quantised all = quantised(values);
  EXPECT_EQ(all.numbers[5], -127);
  EXPECT_FLOAT_EQ(all.back[5], -2.54F);
  EXPECT_EQ(all.numbers[6], static_cast<std::int8_t>(std::nearbyint(0.01F / all.scales[0])));
  EXPECT_EQ(all.numbers[7], static_cast<std::int8_t>(std::nearbyint(0.03F / all.scales[0])));
  EXPECT_EQ(all.scales[1], 0.0F);
  EXPECT_EQ(all.back[kBlock], 0.0F);
  EXPECT_EQ(all.numbers[2 * kBlock + 1], 127);
}

TEST(Int8Blocks, RoundToTheNearestAndTiesToEven) {
  std::vector<float> values(kBlock, 0.0F);
  values[0] = 127;  // so that a step is 1
  const float ties[] = {0.5F, 1.5F, 2.5F, -0.5F, -1.5F, 3.4999F, 3.5001F};
  const int expected[] = {0, 2, 2, 0, -2, 3, 4};
  for (std::size_t i = 0; i < std::size(ties); ++i) values[i + 1] = ties[i];
  const Quantised all = quantised(values);
  EXPECT_EQ(all.scales[0], 1.0F);
  for (std::size_t i = 0; i < std::size(ties); ++i)
    EXPECT_EQ(all.numbers[i + 1], expected[i]) << ties[i];
}

TEST(Int8Blocks, NumbersThatAreHardlyAnyStayFinite) {
  std::vector<float> values(2 * kBlock, 0.0F);
  values[0] = std::numeric_limits<float>::denorm_min();
  values[1] = 2 * std::numeric_limits<float>::denorm_min();
  values[kBlock] = 200 * std::numeric_limits<float>::denorm_min();
  for (const float back : quantised(values).back) EXPECT_TRUE(std::isfinite(back));
}

TEST(Int8Blocks, RefuseWhatIsNotFinite) {
  for (const float bad :
       {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
        std::numeric_limits<float>::quiet_NaN()}) {
    std::vector<float> values(2 * kBlock, 1.0F);
    values[kBlock + 17] = bad;
    std::vector<std::int8_t> numbers(values.size());
    std::vector<float> scales(2);
    EXPECT_FALSE(quantise_int8(values, numbers.data(), scales.data())) << bad;
  }
}

TEST(Int8Blocks, SayWhereAUnitsBytesLie) {
  constexpr Int8Blocks kBlocks{.elements = 512, .plain = 128, .plain_bytes = 2};
  EXPECT_EQ(kBlocks.scales_offset(), 512U);
  EXPECT_EQ(kBlocks.plain_offset(), 512U + 4 * 4);
  EXPECT_EQ(kBlocks.bytes(), 512U + 16 + 256);
}

}  // namespace
}  // namespace sluice::offload
