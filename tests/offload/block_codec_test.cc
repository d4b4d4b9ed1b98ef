// int8 against its definition, and NF4 against numbers that bitsandbytes made (nf4_goldens.h).
#include "offload/params/block_codec.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>
#include <tuple>
#include <vector>

#include "aio/split_mix.h"
#include "offload/adamw/half.h"
#include "tests/offload/nf4_goldens.h"

namespace sluice::offload {
namespace {

constexpr std::size_t kBlock = row_of(BlockCodec::kInt8).block;
constexpr std::size_t kNf4Block = row_of(BlockCodec::kNf4).block;
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kLeast = std::numeric_limits<float>::denorm_min();
constexpr float kMost = std::numeric_limits<float>::max();

struct Encoded {
  std::vector<std::byte> codes;
  std::vector<std::byte> scales;
  std::vector<ScaleGroup> groups;
  std::vector<float> back;
};

std::size_t padded(std::size_t count) { return (count + kBlock - 1) / kBlock * kBlock; }

// With zeros after the values, as in the gap after a parameter.
Encoded encoded(BlockCodec codec, std::vector<float> values, float offset = 0) {
  const CodecRow& row = row_of(codec);
  const ScaleMean mean = {.offset = offset, .elements = values.size()};
  values.resize(padded(values.size()));
  const std::size_t blocks = values.size() / row.block;
  Encoded all{.codes = std::vector<std::byte>(values.size() * row.bits / 8),
              .scales = std::vector<std::byte>(blocks * row.scale_bytes),
              .groups = std::vector<ScaleGroup>(row.group == 0 ? 0 : blocks / row.group + 1),
              .back = std::vector<float>(values.size())};
  EXPECT_TRUE(
      encode(codec, values, mean, {all.codes.data(), all.scales.data(), all.groups.data()}));
  decode(codec, {all.codes.data(), all.scales.data(), all.groups.data()}, 0, all.back);
  return all;
}

struct Quantised {
  std::vector<int> numbers;
  std::vector<float> scales;
  std::vector<float> back;
};

Quantised quantised(const std::vector<float>& values) {
  const Encoded all = encoded(BlockCodec::kInt8, values);
  Quantised shown{
      .numbers = {}, .scales = std::vector<float>(values.size() / kBlock), .back = all.back};
  for (const std::byte code : all.codes) shown.numbers.push_back(static_cast<std::int8_t>(code));
  std::memcpy(shown.scales.data(), all.scales.data(), all.scales.size());
  return shown;
}

bool refuses(BlockCodec codec, const std::vector<float>& values, float offset = 1) {
  std::vector<std::byte> codes(values.size());
  std::vector<std::byte> scales(values.size());
  std::vector<ScaleGroup> groups(1);
  return !encode(codec, values, {.offset = offset, .elements = values.size()},
                 {codes.data(), scales.data(), groups.data()});
}

TEST(BlockCodec, Int8ComesBackWithinHalfAStepOfTheirBlock) {
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

TEST(BlockCodec, Int8HasOneScaleForABlockAndTheLargestReachesTheEnd) {
  std::vector<float> values(3 * kBlock, 0.0F);
  values[5] = -2.54F;              // an outlier among zeros
  values[6] = 0.01F;               // half a quantisation step: rounds to even
  values[7] = 0.03F;               // one and a half steps
  values[2 * kBlock + 1] = 1e-3F;  // next to a block of zeros
  const Quantised all = quantised(values);
  EXPECT_EQ(all.numbers[5], -127);
  EXPECT_FLOAT_EQ(all.back[5], -2.54F);
  EXPECT_EQ(all.numbers[6], static_cast<int>(std::nearbyint(0.01F / all.scales[0])));
  EXPECT_EQ(all.numbers[7], static_cast<int>(std::nearbyint(0.03F / all.scales[0])));
  EXPECT_EQ(all.scales[1], 0.0F);
  EXPECT_EQ(all.back[kBlock], 0.0F);
  EXPECT_EQ(all.numbers[2 * kBlock + 1], 127);
}

TEST(BlockCodec, Int8RoundsToTheNearestAndTiesToEven) {
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

TEST(BlockCodec, Int8LeavesTheSmallestNumbersFinite) {
  std::vector<float> values(2 * kBlock, 0.0F);
  values[0] = kLeast;
  values[1] = 2 * kLeast;
  values[kBlock] = 200 * kLeast;
  for (const float back : quantised(values).back) EXPECT_TRUE(std::isfinite(back));
}

TEST(BlockCodec, RefusesWhatIsNotFinite) {
  for (const CodecRow& row : kCodecs) {
    if (row.codec == BlockCodec::kNone) continue;
    for (const float bad : {kInfinity, -kInfinity, kNaN, -kNaN}) {
      std::vector<float> values(2 * kBlock, 1.0F);
      EXPECT_FALSE(refuses(row.codec, values));
      values[kBlock + 17] = bad;
      EXPECT_TRUE(refuses(row.codec, values)) << bad;
    }
  }
}

TEST(BlockCodec, SaysWhereAUnitsBytesAre) {
  constexpr EncodedUnit kInt8{.elements = 512, .plain = 128, .plain_bytes = 2};
  EXPECT_EQ(kInt8.scales_offset(), 512U);
  EXPECT_EQ(kInt8.plain_offset(), 512U + 4 * 4);
  EXPECT_EQ(kInt8.bytes(), 512U + 16 + 256);
  constexpr EncodedUnit kNf4{
      .codec = BlockCodec::kNf4, .elements = 512, .plain = 128, .plain_bytes = 2};
  EXPECT_EQ(kNf4.scales_offset(), 256U);
  EXPECT_EQ(kNf4.bytes(), 256U + 8 * 4 + 256);
  constexpr EncodedUnit kDouble{.codec = BlockCodec::kNf4Double,
                                .elements = 640,
                                .groups = 3,
                                .plain = 128,
                                .plain_bytes = 4};
  EXPECT_EQ(kDouble.groups_offset(), 320U + 12);  // 10 scales, aligned
  EXPECT_EQ(kDouble.plain_offset(), 332U + 3 * 8);
}

// ---- NF4 ---------------------------------------------------------------------------------------

// FNV-1a of the first `count` elements.
template <typename T>
std::uint64_t hash_of(std::span<const T> values, std::size_t count) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const std::byte byte : std::as_bytes(values.first(count)))
    hash = (hash ^ std::to_integer<std::uint64_t>(byte)) * 0x100000001b3;
  return hash;
}

void expect_hashes(const Encoded& all, std::size_t count, const golden::Hashes& expected) {
  const std::size_t blocks = (count + kNf4Block - 1) / kNf4Block;
  const std::size_t scale_bytes = all.groups.empty() ? sizeof(float) : 1;
  EXPECT_EQ(hash_of<std::byte>(all.codes, count / 2), expected.codes);
  EXPECT_EQ(hash_of<std::byte>(all.scales, blocks * scale_bytes), expected.scales);
  EXPECT_EQ(hash_of<float>(all.back, count), expected.values);
}

// numbers() of make_nf4_goldens.py.
std::vector<float> golden_numbers() {
  std::vector<float> values(20000);
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::int64_t sum = 0;
    for (const std::size_t odd : {40503U, 30011U, 65213U, 7919U})
      sum += static_cast<std::int64_t>((i * odd >> 3) % 4093) - 2046;
    const int exponent = -(12 + static_cast<int>(i / kNf4Block * 5 % 7));
    values[i] = std::ldexp(static_cast<float>(sum), exponent);
  }
  return values;
}

// halves() of make_nf4_goldens.py.
std::vector<float> all_halves(bool bf16, bool mixed) {
  std::vector<float> values(1 << 16);
  for (std::uint32_t i = 0; i < values.size(); ++i) {
    const auto bits = static_cast<std::uint16_t>(mixed ? i * 40503U : i);
    const float value =
        bf16 ? std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16) : float_from_fp16(bits);
    values[i] = std::isfinite(value) ? value : 0;
  }
  return values;
}

TEST(BlockCodec, Nf4HasTheBitsOfBitsandbytes) {
  const std::vector<float> values = golden_numbers();
  expect_hashes(encoded(BlockCodec::kNf4, values), values.size(), golden::kNf4);
}

TEST(BlockCodec, Nf4HasTheBitsOfBitsandbytesForAllNumbersOf16Bits) {
  for (const auto& [bf16, mixed, expected] :
       {std::tuple(true, false, golden::kBf16), std::tuple(true, true, golden::kBf16Mixed),
        std::tuple(false, false, golden::kFp16), std::tuple(false, true, golden::kFp16Mixed)}) {
    SCOPED_TRACE(testing::Message() << bf16 << mixed);
    expect_hashes(encoded(BlockCodec::kNf4, all_halves(bf16, mixed)), 1 << 16, expected);
  }
}

TEST(BlockCodec, DoubleQuantisationHasTheBitsOfBitsandbytes) {
  EXPECT_EQ(hash_of<float>(kNf4Tables.dynamic8, 256), golden::kDynamic8.values);
  const std::vector<float> values = golden_numbers();
  const double mean = sum_of_absmax(BlockCodec::kNf4Double, values) / 313;
  EXPECT_NEAR(mean, golden::kOffset, 1e-7);
  const Encoded all = encoded(BlockCodec::kNf4Double, values, golden::kOffset);
  expect_hashes(all, values.size(), golden::kNf4Double);
  for (std::size_t group = 0; group < 2; ++group) {
    EXPECT_EQ(all.groups[group].scale, golden::kGroupScales[group]);
    EXPECT_EQ(all.groups[group].offset, golden::kOffset);
  }
}

TEST(BlockCodec, Nf4ReturnsItsCodePointsAndRoundsMidpointsDown) {
  for (const float scale : {1.0F, 0.0625F, 1e30F}) {
    std::vector<float> values(kBlock, 0.0F);
    std::vector<float> expected(kBlock, 0.0F);
    for (std::size_t code = 0; code < 16; ++code) {
      const float point = kNf4Tables.nf4[code];
      values[code] = expected[code] = point * scale;
      if (code == 15 || scale > 1) continue;  // powers of two move no midpoint
      values[16 + code] = (point + kNf4Tables.nf4[code + 1]) / 2 * scale;
      expected[16 + code] = point * scale;
      values[32 + code] = std::nextafter(values[16 + code], kInfinity);
      expected[32 + code] = kNf4Tables.nf4[code + 1] * scale;
    }
    EXPECT_EQ(encoded(BlockCodec::kNf4, values).back, expected) << scale;
  }
}

TEST(BlockCodec, Nf4OfHostileBlocksIsFinite) {
  for (const BlockCodec codec : {BlockCodec::kNf4, BlockCodec::kNf4Double}) {
    for (const float value :
         {0.0F, -0.0F, kLeast, -kLeast, 1e-39F, 1e-38F, 2e-38F, 65504.0F, kMost, -kMost}) {
      for (const std::size_t count : {1U, 2U, 63U, 64U, 65U, 127U, 128U, 129U}) {
        const float mean = std::abs(value);
        const Encoded all = encoded(codec, std::vector<float>(count, value), mean);
        for (std::size_t i = 0; i < all.back.size(); ++i) {
          const float limit = mean < 1e-37F ? mean : 0;  // of too small a scale nothing may be left
          if (i < count)
            EXPECT_NEAR(all.back[i], value, limit) << value << " " << count;
          else
            EXPECT_EQ(std::bit_cast<std::uint32_t>(all.back[i]), 0U) << value << " " << i;
        }
      }
    }
  }
}

TEST(BlockCodec, DoubleQuantisationTakesOutliersAndZerosOfAGroup) {
  aio::SplitMix random(11);
  std::vector<float> values(600 * kNf4Block);
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = i / kNf4Block % 7 == 3 ? 0 : static_cast<float>(random.unit()) - 0.5F;
  values[300 * kNf4Block] = 1e4F;
  const float offset = 17.1F;  // about the mean with the outlier
  const Encoded all = encoded(BlockCodec::kNf4Double, values, offset);
  const Encoded plain = encoded(BlockCodec::kNf4, values);
  EXPECT_EQ(all.codes, plain.codes);
  EXPECT_FLOAT_EQ(all.back[300 * kNf4Block], 1e4F);
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (values[i] == 0) {
      EXPECT_EQ(all.back[i], 0.0F);
    } else if (i / kNf4Block < 256) {
      // Within half the largest step of dynamic8; the next group's scales are coarser.
      EXPECT_NEAR(all.back[i], plain.back[i], 17.1 * 0.0071) << i;
    }
    EXPECT_TRUE(std::isfinite(all.back[i]));
  }
}

TEST(BlockCodec, DoubleQuantisationRefusesScalesThatWouldOverflow) {
  aio::SplitMix random(13);
  int refused = 0;
  for (int round = 0; round < 200; ++round) {
    std::vector<float> values(4 * kNf4Block, 1.0F);
    values[7] = kMost;
    const auto offset = static_cast<float>(random.unit() * kMost);
    if (refuses(BlockCodec::kNf4Double, values, offset)) {
      ++refused;
      continue;
    }
    for (const float value : encoded(BlockCodec::kNf4Double, values, offset).back)
      EXPECT_TRUE(std::isfinite(value)) << offset;
  }
  EXPECT_LT(refused, 200);
}

TEST(BlockCodec, DecodesFromAnyBlock) {
  const std::vector<float> values = golden_numbers();
  for (const CodecRow& row : kCodecs) {
    if (row.codec == BlockCodec::kNone) continue;
    const Encoded all = encoded(row.codec, values, golden::kOffset);
    for (const std::size_t block : {std::size_t{1}, 18816 / row.block}) {
      std::vector<float> some(row.block);
      decode(row.codec, {all.codes.data(), all.scales.data(), all.groups.data()}, block, some);
      EXPECT_TRUE(std::equal(some.begin(), some.end(),
                             all.back.begin() + static_cast<long>(block * row.block)));
    }
  }
}

}  // namespace
}  // namespace sluice::offload
