// Stochastic rounding of moments: exact where required, and unbiased on average.
#include "offload/adamw/moment_rounding.h"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <set>
#include <vector>

#include "aio/executor.h"
#include "offload/adamw/adamw.h"
#include "tests/offload/adamw_case.h"
#include "tests/sanitized.h"

namespace sluice::offload {
namespace {

constexpr std::array<std::uint32_t, 5> kRandoms = {0, 1, 0x7FFF, 0x8000, 0xFFFF};

std::uint16_t rounded(std::uint32_t bits, std::uint32_t random) {
  return round_moment(std::bit_cast<float>(stored_moment_bits(bits)), random);
}

TEST(MomentRounding, KeepsWhateverBf16Represents) {
  for (std::uint32_t half = 0; half <= 0xFFFF; ++half) {
    const std::uint32_t magnitude = half & 0x7FFF;
    const std::uint32_t stored = magnitude < 0x0080 ? 0 : magnitude > 0x7F80 ? 0x7FC0 : half;
    for (const std::uint32_t random : kRandoms)
      ASSERT_EQ(rounded(half << 16, random), stored) << half << ", " << random;
  }
}

TEST(MomentRounding, NeverCarriesAFiniteNumberToInfinity) {
  for (const std::uint32_t random : kRandoms) {
    for (const std::uint32_t bits : {0x7F7F0000U, 0x7F7F0001U, 0x7F7F8000U, 0x7F7FFFFFU}) {
      EXPECT_EQ(rounded(bits, random), 0x7F7F);
      EXPECT_EQ(rounded(bits | 0x80000000, random), 0xFF7F);
    }
    EXPECT_EQ(rounded(0x7F800000, random), 0x7F80);
    EXPECT_EQ(rounded(0xFF800000, random), 0xFF80);
    for (const std::uint32_t nan : {0x7F800001U, 0x7FFFFFFFU, 0xFFC00000U, 0xFF80FFFFU})
      EXPECT_EQ(rounded(nan, random), 0x7FC0);
  }
  EXPECT_EQ(rounded(0x7F7EFFFF, 0), 0x7F7E);
  EXPECT_EQ(rounded(0x7F7EFFFF, 1), 0x7F7F);
}

TEST(MomentRounding, FlushesDenormalsBeforeItRounds) {
  for (const std::uint32_t random : kRandoms) {
    for (const std::uint32_t bits : {0U, 1U, 0x00007FFFU, 0x007FFFFFU, 0x80000000U, 0x807FFFFFU})
      EXPECT_EQ(rounded(bits, random), 0);
    EXPECT_EQ(rounded(0x00800000, random), 0x0080);
    EXPECT_EQ(rounded(0x80800000, random), 0x8080);
  }
  EXPECT_EQ(rounded(0x0080FFFF, 0xFFFF), 0x0081);
}

// Over all random numbers: the share that rounds away from zero makes the mean exact.
TEST(MomentRounding, RoundsUpInExactlyTheShareThatMakesTheMeanExact) {
  for (const std::uint32_t bits : {0x3F800001U, 0x3F808000U, 0x3F80FFFFU, 0xBF811234U, 0x0080ABCDU,
                                   0x7F7E0F0FU, 0x3FFFFFFFU}) {
    std::uint32_t away = 0;
    for (std::uint32_t random = 0; random <= 0xFFFF; ++random) {
      const std::uint32_t half = rounded(bits, random);
      ASSERT_TRUE(half == bits >> 16 || half == (bits >> 16) + 1);
      away += half - (bits >> 16);
    }
    EXPECT_EQ(away, bits & 0xFFFF);
  }
}

TEST(MomentBits, AreThoseOfTheFirstRelease) {
  const MomentKeys keys = moment_keys({.run_seed = 1234, .step = 1}, 0);
  EXPECT_EQ(keys.first, 0xA261559FU);
  EXPECT_EQ(keys.second, 0x4605D059U);
  EXPECT_EQ(moment_bits(keys, 0), 0x84BE56E7U);
  EXPECT_EQ(moment_bits(keys, 65'537), 0xCC104A40U);
  EXPECT_EQ(moment_bits(keys, (std::uint64_t{1} << 32) + 65'537), 0xCC104A40U);
}

TEST(MomentBits, AreOthersForEachSeedStepAndUnit) {
  std::set<std::uint64_t> keys;
  for (const std::uint64_t seed : {std::uint64_t{0}, std::uint64_t{1}, ~std::uint64_t{0}})
    for (std::int64_t step = 0; step < 100; ++step)
      for (int unit = 0; unit < 50; ++unit) {
        const MomentKeys it = moment_keys({.run_seed = seed, .step = step}, unit);
        keys.insert(std::uint64_t{it.first} << 32 | it.second);
      }
  EXPECT_EQ(keys.size(), 3U * 100 * 50);
}

// Sums of bits over many elements, of neighbouring steps, and of pairs of bits that should be
// independent: each within five standard deviations of its expectation.
TEST(MomentBits, LookRandomAlongElementsAndSteps) {
  constexpr std::uint64_t kElements = 1 << 20;
  constexpr double kFiveDeviations = 5 * 0.5 * 1024;  // for a sum of kElements fair bits
  for (std::int64_t step = 1; step <= 8; step += static_cast<std::int64_t>(sweep_stride(4))) {
    const MomentKeys keys = moment_keys({.run_seed = 42, .step = step}, 3);
    const MomentKeys next = moment_keys({.run_seed = 42, .step = step + 1}, 3);
    std::array<std::int64_t, 32> ones{}, with_neighbour{}, with_next_step{};
    std::array<std::int64_t, 16> m_with_v{};
    for (std::uint64_t i = 0; i < kElements; ++i) {
      const std::uint32_t bits = moment_bits(keys, i);
      const std::uint32_t neighbour = bits ^ moment_bits(keys, i + 1);
      const std::uint32_t later = bits ^ moment_bits(next, i);
      const std::uint32_t halves = (bits ^ (bits >> 16)) & 0xFFFF;
      for (std::size_t b = 0; b < 32; ++b) {
        ones[b] += (bits >> b) & 1;
        with_neighbour[b] += (neighbour >> b) & 1;
        with_next_step[b] += (later >> b) & 1;
        if (b < 16) m_with_v[b] += (halves >> b) & 1;
      }
    }
    const auto expect_half = [&](const auto& sums, const char* what) {
      for (const std::int64_t sum : sums)
        EXPECT_LT(std::abs(static_cast<double>(sum) - kElements / 2.0), kFiveDeviations)
            << what << ", step " << step;
    };
    expect_half(ones, "bits");
    expect_half(with_neighbour, "neighbours");
    expect_half(with_next_step, "steps");
    expect_half(m_with_v, "m and v");
  }
}

// v of 1 without gradients: on average b2^t of it is left; rounding to nearest would keep 1
// forever.
TEST(MomentRounding, KeepsWhatRoundingToNearestWouldLose) {
  constexpr std::size_t kElements = 16 * 1024;
  constexpr int kSteps = 1000;
  const auto executor = aio::make_executor(2);
  AdamwCase problem(kElements);
  std::fill(problem.v16.begin(), problem.v16.end(), bf16_from_float(1));
  std::fill(problem.m16.begin(), problem.m16.end(), bf16_from_float(-1));
  constexpr AdamwKind kKind{GradType::kFp32, ParamForm::kFp32, false, ElementType::kBf16};
  for (int step = 1; step <= kSteps; ++step) {
    AdamwArrays arrays = problem.arrays(kKind);
    arrays.moment_keys = moment_keys({.run_seed = 8, .step = step}, 0);
    const auto scalars = make_adamw_scalars({.beta1 = 0.998, .beta2 = 0.999, .step = step}).value();
    adamw_step(**executor, best_isa(), scalars, arrays, kElements);
  }
  EXPECT_EQ(bf16_from_float(0.999F), bf16_from_float(1));
  double m = 0, v = 0;
  for (std::size_t i = 0; i < kElements; ++i) {
    m += float_from_bf16(problem.m16[i]) / static_cast<double>(kElements);
    v += float_from_bf16(problem.v16[i]) / static_cast<double>(kElements);
  }
  EXPECT_NEAR(v, std::pow(0.999, kSteps), 0.003);
  EXPECT_NEAR(m, -std::pow(0.998, kSteps), 0.003);
}

// The parameter is computed from moments before they are rounded.
TEST(MomentRounding, ComesAfterTheStepOfTheParameter) {
  constexpr std::size_t kElements = 1000;
  const auto executor = aio::make_executor(1);
  AdamwCase wide(kElements);
  wide.fill(21);
  for (std::size_t i = 0; i < kElements; ++i) {
    wide.m[i] = float_from_bf16(wide.m16[i]);
    wide.v[i] = float_from_bf16(wide.v16[i]);
  }
  AdamwCase narrow = wide;
  const AdamwScalars scalars = adamw_settings(0, false);
  adamw_step(**executor, best_isa(), scalars,
             wide.arrays({GradType::kBf16, ParamForm::kFp32, false}), kElements);
  adamw_step(**executor, best_isa(), scalars,
             narrow.arrays({GradType::kBf16, ParamForm::kFp32, false, ElementType::kBf16}),
             kElements);
  const std::string difference = narrow.difference(wide);
  EXPECT_EQ(difference.find("master"), std::string::npos) << difference;
  const MomentKeys keys = narrow.arrays({}).moment_keys;
  for (std::size_t i = 0; i < kElements; ++i) {
    const std::uint32_t random = moment_bits(keys, AdamwCase::kFirstElement + i);
    ASSERT_EQ(narrow.m16[i], round_moment(wide.m[i], random & 0xFFFF)) << i;
    ASSERT_EQ(narrow.v16[i], round_moment(wide.v[i], random >> 16)) << i;
  }
}

}  // namespace
}  // namespace sluice::offload
