// Sizes and rates as text. K, M, G, T are powers of 1024; GB/s is 10^9 bytes a second.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "aio/result.h"

namespace sluice {

inline constexpr std::uint64_t kKiB = 1024;
inline constexpr std::uint64_t kMiB = 1024 * kKiB;
inline constexpr std::uint64_t kGiB = 1024 * kMiB;
inline constexpr std::uint64_t kTiB = 1024 * kGiB;

// "4096", "256K", "1.5G", also "256KB", "256KiB"; any case. A fraction of K, M, G or T is rounded
// to whole bytes. Rejects empty text, negative numbers, fractional bytes, unknown suffixes and
// numbers of more than 63 bits, with a sentence.
Result<std::uint64_t> parse_bytes(std::string_view text);

// "4096" -> "4K", 1610612736 -> "1.50G"; exact multiples without decimals. The inverse of
// parse_bytes for exact multiples.
std::string format_bytes(std::uint64_t bytes);

// GB/s (10^9 bytes) for bytes moved in a time; 0 if no time has passed.
double gb_per_s(std::uint64_t bytes, std::int64_t elapsed_ns);

constexpr std::uint64_t align_down(std::uint64_t value, std::uint64_t alignment) {
  return value - value % alignment;
}
constexpr std::uint64_t align_up(std::uint64_t value, std::uint64_t alignment) {
  return align_down(value + alignment - 1, alignment);
}

}  // namespace sluice
