#include "bench/pattern.h"

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
  std::uint64_t counter = base + offset_bytes / kWordBytes * kGolden;
  for (std::size_t i = 0; i < data.size(); i += kWordBytes, counter += kGolden) {
    const std::uint64_t expected = mix64(counter);
    std::uint64_t got = 0;
    std::memcpy(&got, data.data() + i, kWordBytes);
    if (got == expected) [[likely]]
      continue;
    const auto* expected_bytes = reinterpret_cast<const unsigned char*>(&expected);
    const auto* got_bytes = reinterpret_cast<const unsigned char*>(&got);
    std::size_t at = 0;
    while (expected_bytes[at] == got_bytes[at]) ++at;
    PatternMismatch mismatch{.offset_bytes = offset_bytes + i + at,
                             .expected = expected_bytes[at],
                             .got = got_bytes[at],
                             .belongs_to_bytes = offset_of(got, base)};
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
