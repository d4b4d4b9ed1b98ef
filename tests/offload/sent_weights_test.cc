// Weights that ranks send in 8 bits: how far from the originals they are, and that the number of
// ranks changes no bit of them.
#include "offload/params/sent_weights.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>

#include "tests/offload/sent_weights_under_test.h"

namespace sluice::offload {
namespace {

constexpr std::uint64_t kVectors = 3 * kSentGroup;
constexpr std::uint64_t kElements = 97 * kSentGroup + kVectors;

class SentWeights : public testing::TestWithParam<ParamForm> {
 protected:
  SentUnit unit(int world, std::uint64_t encoded = kElements - kVectors) const {
    return {.elements = kElements, .encoded = encoded, .world = world, .form = GetParam()};
  }
  const std::vector<std::byte> whole_ = packed(GetParam(), hostile_values(kElements));
};

INSTANTIATE_TEST_SUITE_P(Forms, SentWeights,
                         testing::Values(ParamForm::kSplit, ParamForm::kFp32,
                                         ParamForm::kFp32AndFp16));

TEST_P(SentWeights, AreTheSameBitsOnAnyNumberOfRanks) {
  for (const std::uint64_t encoded :
       {kElements - kVectors, kElements, std::uint64_t{0}, 40 * kSentGroup}) {
    const auto one = gathered(unit(1, encoded), whole_);
    for (const int world : {2, 3, 4, 7, 64, 128})
      EXPECT_EQ(gathered(unit(world, encoded), whole_), one) << world << " ranks";
  }
}

// Against arithmetic in fp64: within half a step of each value, and the rounding of the type.
TEST_P(SentWeights, AreWithinHalfAStepOfTheirValues) {
  const SentUnit sent = unit(4);
  const auto made = unpacked(GetParam(), gathered(sent, whole_));
  const auto values = unpacked(GetParam(), whole_);
  const double epsilon = GetParam() == ParamForm::kFp32 ? 0x1p-23 : 0x1p-8;
  const double least = GetParam() == ParamForm::kFp32AndFp16 ? 0x1p-25 : 0x1p-149;  // denormals
  for (std::uint64_t first = 0; first < sent.encoded; first += kSentGroup) {
    double most = 0;
    bool is_finite = true;
    for (std::uint64_t i = first; i < first + kSentGroup; ++i) {
      is_finite &= std::isfinite(values[i]);
      most = std::max(most, std::abs(static_cast<double>(values[i])));
    }
    for (std::uint64_t i = first; i < first + kSentGroup; ++i) {
      if (!is_finite) {
        EXPECT_TRUE(std::isnan(made[i])) << "element " << i;
        continue;
      }
      if (most > 3e38) continue;  // perhaps without a finite scale
      const double far = std::abs(static_cast<double>(made[i]) - values[i]);
      EXPECT_LE(far, most / 127 / 2 * (1 + 1e-6) + epsilon * std::abs(made[i]) + least)
          << "element " << i;
    }
  }
  EXPECT_TRUE(std::equal(values.begin() + static_cast<std::ptrdiff_t>(sent.encoded), values.end(),
                         made.begin() + static_cast<std::ptrdiff_t>(sent.encoded)));
}

TEST_P(SentWeights, AreZerosWhereTheyWere) {
  const auto made = unpacked(GetParam(), gathered(unit(2), whole_));
  for (std::uint64_t i = kSentGroup; i < 2 * kSentGroup; ++i) EXPECT_EQ(made[i], 0) << i;
}

// One large number makes the others of its group coarse, and no others.
TEST_P(SentWeights, ChangeNoOtherGroup) {
  const auto before = gathered(unit(2), whole_);
  auto values = hostile_values(kElements);
  values[20 * kSentGroup + 3] = 6e4F;
  const auto after = gathered(unit(2), packed(GetParam(), values));
  const std::uint64_t group = kSentGroup * unit(2).width();
  for (std::uint64_t at = 0; at < before.size() / group; ++at) {
    const auto first = static_cast<std::ptrdiff_t>(at * group);
    const auto end = first + static_cast<std::ptrdiff_t>(group);
    const bool same =
        std::equal(before.begin() + first, before.begin() + end, after.begin() + first);
    EXPECT_EQ(same, at != 20) << "group " << at;
  }
}

// The codes and scales of a group are 132 bytes instead of 256.
TEST(SentUnit, TakesHalfTheBytesOf16Bits) {
  const SentUnit unit{.elements = 100'000 * kSentGroup, .encoded = 99'990 * kSentGroup, .world = 8};
  const double plain = 2.0 * static_cast<double>(unit.elements);
  EXPECT_NEAR(static_cast<double>(unit.bytes()) / plain, 0.516, 0.002);
  EXPECT_EQ(unit.bytes() % 8, 0U);
}

// Codes that are rounded again stay where they are: a value that was gathered once is not moved by
// a second rounding in the same group.
TEST_P(SentWeights, AreNotMovedBySecondRounding) {
  std::vector<float> values = hostile_values(kElements);
  for (std::uint64_t group = 2; group < 7; ++group)
    std::fill_n(values.begin() + static_cast<std::ptrdiff_t>(group * kSentGroup), kSentGroup, 0.5F);
  const auto once =
      unpacked(ParamForm::kFp32,
               gathered({.elements = kElements, .encoded = kElements, .form = ParamForm::kFp32},
                        packed(ParamForm::kFp32, values)));
  const auto twice =
      unpacked(ParamForm::kFp32,
               gathered({.elements = kElements, .encoded = kElements, .form = ParamForm::kFp32},
                        packed(ParamForm::kFp32, once)));
  for (std::uint64_t i = 0; i < kElements; ++i)
    EXPECT_NEAR(twice[i], once[i], 1e-6 * std::abs(once[i])) << i;
}

}  // namespace
}  // namespace sluice::offload
