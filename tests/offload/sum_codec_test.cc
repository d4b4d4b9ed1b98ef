// Gradient sums in 8 and 4 bits: the error, the bytes, and numbers that are not finite.
#include "offload/sum_codec.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <random>
#include <vector>

namespace sluice::offload {
namespace {

class SumCodecs : public testing::TestWithParam<SumCodec> {
 protected:
  std::vector<float> sent(const std::vector<float>& values) {
    std::vector<std::byte> bytes(encoded_sum_bytes(GetParam(), values.size()));
    encode_sum(GetParam(), values.data(), values.size(), bytes.data());
    std::vector<float> got(values.size());
    decode_sum(GetParam(), bytes.data(), got.data(), got.size());
    return got;
  }
};

INSTANTIATE_TEST_SUITE_P(Bits, SumCodecs, testing::Values(SumCodec::kInt4, SumCodec::kInt8));

TEST_P(SumCodecs, AreOffByAtMostHalfAStepOfTheBlocksLargest) {
  std::mt19937 random(3);
  std::normal_distribution<float> any;
  std::vector<float> values(20 * kSumCodecBlock);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::size_t block = i / kSumCodecBlock;
    values[i] = any(random) * std::pow(10.0F, static_cast<float>(block) - 10);
  }
  const std::vector<float> got = sent(values);
  for (std::size_t first = 0; first < values.size(); first += kSumCodecBlock) {
    float most = 0;
    for (std::size_t i = first; i < first + kSumCodecBlock; ++i)
      most = std::max(most, std::abs(values[i]));
    const float half = most / most_code(GetParam()) / 2 * 1.0001F;
    for (std::size_t i = first; i < first + kSumCodecBlock; ++i)
      ASSERT_LE(std::abs(got[i] - values[i]), half) << i;
  }
}

TEST_P(SumCodecs, KeepEachCodeOfEitherSignInItsPlace) {
  std::vector<float> values(kSumCodecBlock);
  const int most = static_cast<int>(most_code(GetParam()));
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<float>(static_cast<int>(i) * 5 % (2 * most + 1) - most);
  values[77] = static_cast<float>(-most);
  EXPECT_EQ(sent(values), values);
  EXPECT_EQ(sent(std::vector<float>(kSumCodecBlock)), std::vector<float>(kSumCodecBlock));
}

TEST_P(SumCodecs, TurnABlockThatIsNotFiniteIntoNaNsAndNoOtherBlock) {
  for (const float bad :
       {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
        std::numeric_limits<float>::quiet_NaN()}) {
    std::vector<float> values(3 * kSumCodecBlock, 1.0F);
    values[kSumCodecBlock + 127] = bad;
    const std::vector<float> got = sent(values);
    for (std::size_t i = 0; i < got.size(); ++i)
      ASSERT_EQ(std::isnan(got[i]), i / kSumCodecBlock == 1) << i;
  }
  // The smallest and the largest numbers stay finite.
  std::vector<float> extremes(kSumCodecBlock, std::numeric_limits<float>::denorm_min());
  for (const float value : sent(extremes)) ASSERT_TRUE(std::isfinite(value));
  extremes.front() = std::numeric_limits<float>::max() / 2;
  for (const float value : sent(extremes)) ASSERT_TRUE(std::isfinite(value));
}

TEST(SumCodec, SendsThePublishedBits) {
  EXPECT_EQ(encoded_sum_bytes(SumCodec::kFp32, 1024), 4096U);
  EXPECT_EQ(encoded_sum_bytes(SumCodec::kInt8, 1024), 1024U + 32U);
  EXPECT_EQ(encoded_sum_bytes(SumCodec::kInt4, 1024), 512U + 32U);  // 4.25 bits
}

}  // namespace
}  // namespace sluice::offload
