// The pattern that --verify writes: every 8-byte word is a function of the seed and of its own
// offset in the file.
//
// For one seed the function is a bijection of offsets, so no two words of a file are alike. A lost,
// torn, stale or misplaced write cannot look right, and a misplaced word shows where it came from.
// The bytes look random, so drives and hypervisors that compress or drop zeros gain nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace sluice::bench {

// data.size() and offset_bytes are multiples of 8.
void fill_pattern(std::span<std::byte> data, std::uint64_t seed, std::uint64_t offset_bytes);

struct PatternMismatch {
  std::uint64_t offset_bytes = 0;  // the first wrong byte in the file
  std::uint8_t expected = 0;
  std::uint8_t got = 0;
  // The file offset that the found word belongs to.
  std::optional<std::uint64_t> belongs_to_bytes;
};

// The first byte of `data`, which was read from offset_bytes, that differs from the pattern.
// file_bytes bounds where misplaced data may come from.
std::optional<PatternMismatch> find_mismatch(std::span<const std::byte> data, std::uint64_t seed,
                                             std::uint64_t offset_bytes, std::uint64_t file_bytes);

// "FILE at offset 4096: expected byte 0x3f, got 0x00 (the data of offset 1M)"
std::string describe(const PatternMismatch& mismatch, const std::string& path);

}  // namespace sluice::bench
