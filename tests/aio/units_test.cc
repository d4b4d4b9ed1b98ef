#include "aio/units.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <random>

namespace sluice {
namespace {

using testing::HasSubstr;

std::uint64_t parsed(std::string_view text) {
  const auto bytes = parse_bytes(text);
  EXPECT_TRUE(bytes.ok()) << text << ": " << (bytes.ok() ? "" : bytes.error().message());
  return bytes.ok() ? *bytes : 0;
}

TEST(ParseBytes, ReadsEverySuffixInAnyCase) {
  EXPECT_EQ(parsed("0"), 0U);
  EXPECT_EQ(parsed("4096"), 4096U);
  EXPECT_EQ(parsed("4096B"), 4096U);
  EXPECT_EQ(parsed("256K"), 256 * kKiB);
  EXPECT_EQ(parsed("256k"), 256 * kKiB);
  EXPECT_EQ(parsed("256KB"), 256 * kKiB);
  EXPECT_EQ(parsed("256KiB"), 256 * kKiB);
  EXPECT_EQ(parsed("3m"), 3 * kMiB);
  EXPECT_EQ(parsed("7Gib"), 7 * kGiB);
  EXPECT_EQ(parsed("2T"), 2 * kTiB);
}

TEST(ParseBytes, ReadsFractionsOfAUnit) {
  EXPECT_EQ(parsed("1.5G"), 3 * kGiB / 2);
  EXPECT_EQ(parsed(".5K"), 512U);
  EXPECT_EQ(parsed("2.M"), 2 * kMiB);
  EXPECT_EQ(parsed("4096.0"), 4096U);
  EXPECT_EQ(parsed("0.1K"), 102U);  // rounded to whole bytes
}

TEST(ParseBytes, IsExactUpToTheLimitAndRefusesMore) {
  EXPECT_EQ(parsed("9223372036854775807"), 9223372036854775807U);
  EXPECT_EQ(parsed("9007199254740993"), 9007199254740993U);  // 2^53 + 1: not a double
  EXPECT_EQ(parsed("8388607T"), 8388607 * kTiB);
  EXPECT_EQ(parsed("8388607.5T"), 8388607 * kTiB + kTiB / 2);
  for (const char* text : {"9223372036854775808", "8388608T", "8388608.0T", "99999999999999999999",
                           "1000000000000000000000000.5G"}) {
    const auto bytes = parse_bytes(text);
    ASSERT_FALSE(bytes.ok()) << text;
    EXPECT_THAT(bytes.error().message(), HasSubstr("too large"));
  }
}

TEST(ParseBytes, RejectsWhatIsNoSizeWithASentenceThatQuotesIt) {
  for (const char* text :
       {"",    "K",   "-1",  "+1",  "1.5", "1.5B", "1..5K", "1.5.2K", ".",   ".K",  "1KK",  "1X",
        "1BK", "1iB", "1BB", "1K ", " 1K", "1 K",  "1e3",   "0x10",   "nan", "inf", "1,5G", "K1"}) {
    const auto bytes = parse_bytes(text);
    ASSERT_FALSE(bytes.ok()) << "\"" << text << "\" gave " << *bytes;
    EXPECT_EQ(bytes.error().code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(bytes.error().message(), HasSubstr("\"" + std::string(text) + "\""));
  }
}

TEST(FormatBytes, WritesExactMultiplesWithoutDecimals) {
  EXPECT_EQ(format_bytes(0), "0");
  EXPECT_EQ(format_bytes(1023), "1023");
  EXPECT_EQ(format_bytes(4096), "4K");
  EXPECT_EQ(format_bytes(kMiB), "1M");
  EXPECT_EQ(format_bytes(1024 * kTiB), "1024T");
  EXPECT_EQ(format_bytes(3 * kGiB / 2), "1.50G");
  EXPECT_EQ(format_bytes(1025), "1.00K");
}

TEST(FormatBytes, NeverWritesAThousandTwentyFourOfAUnitThatHasALargerOne) {
  EXPECT_EQ(format_bytes(kMiB - 1), "1.00M");
  EXPECT_EQ(format_bytes(kGiB - 1), "1.00G");
  EXPECT_EQ(format_bytes(kMiB - 10 * kKiB), "1014K");
  EXPECT_EQ(format_bytes(kMiB - 10), "1023.99K");
}

TEST(FormatBytes, IsTheInverseOfParseForExactMultiples) {
  const std::uint64_t seed = 5;
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  for (int i = 0; i < 1000; ++i) {
    for (const std::uint64_t unit : {std::uint64_t{1}, kKiB, kMiB, kGiB, kTiB}) {
      const std::uint64_t bytes = (1 + random() % 1023) * unit;
      EXPECT_EQ(parsed(format_bytes(bytes)), bytes);
    }
  }
}

TEST(GbPerS, CountsInPowersOfTen) {
  EXPECT_DOUBLE_EQ(gb_per_s(2'000'000'000, 1'000'000'000), 2.0);
  EXPECT_DOUBLE_EQ(gb_per_s(kGiB, 1'000'000'000), 1.073741824);
  EXPECT_EQ(gb_per_s(100, 0), 0.0);
  EXPECT_EQ(gb_per_s(100, -1), 0.0);
}

TEST(Align, RoundsDownAndUpToMultiples) {
  static_assert(align_down(4097, 4096) == 4096 && align_down(4095, 4096) == 0);
  static_assert(align_up(4097, 4096) == 8192 && align_up(4096, 4096) == 4096);
  static_assert(align_up(0, 4096) == 0 && align_up(10, 3) == 12);  // not only powers of two
}

}  // namespace
}  // namespace sluice
