#include "bench/pattern.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>

#include "aio/check.h"
#include "aio/units.h"
#include "bench/random.h"

namespace sluice::bench {
namespace {

constexpr std::uint64_t kWordBytes = 8;

// The inverse of an odd number modulo 2^64: Newton's iteration doubles the correct bits from 3.
constexpr std::uint64_t inverse_of(std::uint64_t odd) {
  std::uint64_t inverse = odd;
  for (int i = 0; i < 5; ++i) inverse *= 2 - odd * inverse;
  return inverse;
}

constexpr std::uint64_t undo_shift(std::uint64_t x, int shift) {
  std::uint64_t result = x;
  for (int done = shift; done < 64; done += shift) result = x ^ (result >> shift);
  return result;
}

constexpr std::uint64_t unmix64(std::uint64_t x) {
  x = undo_shift(x, 31) * inverse_of(0x94d049bb133111eb);
  x = undo_shift(x, 27) * inverse_of(0xbf58476d1ce4e5b9);
  return undo_shift(x, 30);
}
static_assert(unmix64(mix64(0x0123456789abcdef)) == 0x0123456789abcdef);

// Mixed, so that the patterns of neighbouring seeds are not shifts of each other.
std::uint64_t base_of(std::uint64_t seed) { return mix64(seed ^ kGolden); }

std::optional<std::uint64_t> offset_of(std::uint64_t word, std::uint64_t base) {
  const std::uint64_t index = (unmix64(word) - base) * inverse_of(kGolden);
  if (index > UINT64_MAX / kWordBytes) return std::nullopt;
  return index * kWordBytes;
}

}  // namespace

void fill_pattern(std::span<std::byte> data, std::uint64_t seed, std::uint64_t offset_bytes) {
  SLUICE_CHECK(data.size() % kWordBytes == 0 && offset_bytes % kWordBytes == 0,
               "the pattern consists of whole words");
  std::uint64_t counter = base_of(seed) + offset_bytes / kWordBytes * kGolden;
  for (std::size_t i = 0; i < data.size(); i += kWordBytes, counter += kGolden) {
    const std::uint64_t word = mix64(counter);
    std::memcpy(data.data() + i, &word, kWordBytes);
  }
}

std::optional<PatternMismatch> find_mismatch(std::span<const std::byte> data, std::uint64_t seed,
                                             std::uint64_t offset_bytes, std::uint64_t file_bytes) {
  SLUICE_CHECK(data.size() % kWordBytes == 0 && offset_bytes % kWordBytes == 0,
               "the pattern consists of whole words");
  const std::uint64_t base = base_of(seed);
  const auto word_at = [&](std::size_t i) {
    std::uint64_t word = 0;
    std::memcpy(&word, data.data() + i, kWordBytes);
    return word;
  };
  const auto expected_at = [&](std::size_t i) {
    return mix64(base + (offset_bytes + i) / kWordBytes * kGolden);
  };
  // Compares a stretch at a time without branches, and examines single words only in a stretch that
  // differs.
  constexpr std::size_t kStretchBytes = 64 * kWordBytes;
  for (std::size_t begin = 0; begin < data.size(); begin += kStretchBytes) {
    const std::size_t end = std::min(begin + kStretchBytes, data.size());
    std::uint64_t difference = 0;
    std::uint64_t counter = base + (offset_bytes + begin) / kWordBytes * kGolden;
    for (std::size_t i = begin; i < end; i += kWordBytes, counter += kGolden)
      difference |= word_at(i) ^ mix64(counter);
    if (difference == 0) [[likely]]
      continue;

    std::size_t i = begin;
    while (word_at(i) == expected_at(i)) i += kWordBytes;
    const std::uint64_t expected = expected_at(i);
    std::array<std::uint8_t, kWordBytes> expected_bytes{};
    std::memcpy(expected_bytes.data(), &expected, kWordBytes);
    std::size_t at = 0;
    while (std::to_integer<std::uint8_t>(data[i + at]) == expected_bytes[at]) ++at;
    PatternMismatch mismatch{.offset_bytes = offset_bytes + i + at,
                             .expected = expected_bytes[at],
                             .got = std::to_integer<std::uint8_t>(data[i + at]),
                             .belongs_to_bytes = offset_of(word_at(i), base)};
    if (mismatch.belongs_to_bytes.value_or(file_bytes) >= file_bytes)
      mismatch.belongs_to_bytes.reset();
    return mismatch;
  }
  return std::nullopt;
}

std::string describe(const PatternMismatch& mismatch, const std::string& path) {
  char bytes[64];
  std::snprintf(bytes, sizeof bytes, "expected byte 0x%02x, got 0x%02x", mismatch.expected,
                mismatch.got);
  std::string text = path + " at offset " + std::to_string(mismatch.offset_bytes) + ": " + bytes;
  if (mismatch.belongs_to_bytes)
    text += " (the data of offset " + std::to_string(*mismatch.belongs_to_bytes) + ")";
  return text;
}

}  // namespace sluice::bench
