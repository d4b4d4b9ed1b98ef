// TokenLayout: the position and width of the tokens in a file.
//
// Three formats, all little-endian:
//   raw         only tokens, uint16 or uint32 (nanoGPT's .bin, tools/prepare)
//   llm.c       256 int32 (magic 20240520, version 1, token count), then uint16 tokens
//   llm.c       256 int32 (magic 20240801, version 7, token count), then uint32 tokens
// A raw file that begins with one of these magics is read as llm.c's. No vocabulary has a uint32 id
// that large. Read as uint16, the first id would be 55432 or 55713, which is above GPT-2's, and the
// second 308.
//
// Pure functions of bytes.
//
// Errors:  kInvalidArgument or kCorrupt, without the file's name.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string_view>

#include "aio/result.h"

namespace sluice::data {

enum class TokenType : std::uint8_t { kUint16, kUint32 };

std::string_view to_string(TokenType type);  // "uint16", "uint32": as in configurations
std::optional<TokenType> token_type_named(std::string_view name);

constexpr std::uint64_t token_bytes(TokenType type) { return type == TokenType::kUint16 ? 2 : 4; }
constexpr std::uint64_t max_token_of(TokenType type) {
  return type == TokenType::kUint16 ? std::numeric_limits<std::uint16_t>::max()
                                    : std::numeric_limits<std::uint32_t>::max();
}

struct TokenLayout {
  TokenType type = TokenType::kUint16;
  std::uint64_t first_byte = 0;
  std::uint64_t token_count = 0;
};

inline constexpr std::uint64_t kTokenHeaderBytes = 256 * sizeof(std::int32_t);

// The layout that a header declares; nothing if the file has no header. `head` is the file's first
// min(file_bytes, kTokenHeaderBytes) bytes.
Result<std::optional<TokenLayout>> header_layout(std::span<const std::byte> head,
                                                 std::uint64_t file_bytes);

// The layout of a file that contains only tokens of `type`.
Result<TokenLayout> raw_layout(TokenType type, std::uint64_t file_bytes);

}  // namespace sluice::data
