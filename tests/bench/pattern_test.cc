// The checker of --verify must detect what a broken IO layer could do to a file.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "bench/closed_loop.h"

namespace sluice::bench {
namespace {

constexpr std::uint64_t kSeed = 42;
constexpr std::uint64_t kOffset = 3 << 20;
constexpr std::uint64_t kFileBytes = 64 << 20;

std::vector<std::byte> pattern(std::size_t size, std::uint64_t seed, std::uint64_t offset_bytes) {
  std::vector<std::byte> data(size);
  fill_pattern(data, seed, offset_bytes);
  return data;
}

TEST(Pattern, AcceptsWhatItWrote) {
  const auto data = pattern(1 << 20, kSeed, kOffset);
  EXPECT_FALSE(find_mismatch(data, kSeed, kOffset, kFileBytes));
}

TEST(Pattern, IsTheSameWhereverABlockBegins) {
  const auto whole = pattern(16384, kSeed, kOffset);
  const auto part = pattern(4096, kSeed, kOffset + 8192);
  EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + 8192));
}

TEST(Pattern, FindsAFlipOfAnyBitOfAnyByte) {
  auto data = pattern(4096, kSeed, kOffset);
  for (std::size_t at = 0; at < data.size(); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      const std::byte good = data[at];
      data[at] ^= std::byte{1} << bit;
      const auto mismatch = find_mismatch(data, kSeed, kOffset, kFileBytes);
      ASSERT_TRUE(mismatch) << "byte " << at << " bit " << bit;
      EXPECT_EQ(mismatch->offset_bytes, kOffset + at);
      EXPECT_EQ(mismatch->expected, std::to_integer<std::uint8_t>(good));
      EXPECT_EQ(mismatch->got, std::to_integer<std::uint8_t>(data[at]));
      data[at] = good;
    }
  }
  EXPECT_FALSE(find_mismatch(data, kSeed, kOffset, kFileBytes));
}

TEST(Pattern, NamesWhereMisplacedDataBelongs) {
  for (const std::uint64_t other :
       {std::uint64_t{0}, kOffset - 4096, kOffset + 512, kFileBytes - 4096}) {
    const auto data = pattern(4096, kSeed, other);
    const auto mismatch = find_mismatch(data, kSeed, kOffset, kFileBytes);
    ASSERT_TRUE(mismatch);
    EXPECT_EQ(mismatch->offset_bytes, kOffset);
    EXPECT_EQ(mismatch->belongs_to_bytes, other);
  }
}

TEST(Pattern, FindsASectorThatWasNotWritten) {
  auto data = pattern(65536, kSeed, kOffset);
  std::memset(data.data() + 12288, 0, 512);
  const auto mismatch = find_mismatch(data, kSeed, kOffset, kFileBytes);
  ASSERT_TRUE(mismatch);
  EXPECT_GE(mismatch->offset_bytes, kOffset + 12288);
  EXPECT_LT(mismatch->offset_bytes, kOffset + 12288 + 8);
  EXPECT_FALSE(mismatch->belongs_to_bytes);
}

TEST(Pattern, FindsStaleDataOfTheRunBefore) {
  auto data = pattern(65536, kSeed, kOffset);
  const auto stale = pattern(4096, kSeed - 1, kOffset + 8192);
  std::copy(stale.begin(), stale.end(), data.begin() + 8192);
  const auto mismatch = find_mismatch(data, kSeed, kOffset, kFileBytes);
  ASSERT_TRUE(mismatch);
  EXPECT_EQ(mismatch->offset_bytes / 8, (kOffset + 8192) / 8);
}

TEST(Pattern, TakesADataOffsetBeyondTheFileForNoOrigin) {
  const auto data = pattern(4096, kSeed, kFileBytes + 4096);
  const auto mismatch = find_mismatch(data, kSeed, kOffset, kFileBytes);
  ASSERT_TRUE(mismatch);
  EXPECT_FALSE(mismatch->belongs_to_bytes);
}

TEST(Pattern, TellsFileOffsetExpectedAndGot) {
  const PatternMismatch mismatch{
      .offset_bytes = 4097, .expected = 0x3f, .got = 0, .belongs_to_bytes = 8192};
  EXPECT_THAT(describe(mismatch, "/nvme/file"),
              testing::AllOf(testing::HasSubstr("/nvme/file"), testing::HasSubstr("4097"),
                             testing::HasSubstr("0x3f"), testing::HasSubstr("0x00"),
                             testing::HasSubstr("8192")));
}

}  // namespace
}  // namespace sluice::bench
