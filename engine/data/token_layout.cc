#include "engine/data/token_layout.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>

#include "aio/check.h"

namespace sluice::data {
namespace {

struct HeaderKind {
  std::int32_t magic;
  std::int32_t version;
  TokenType type;
};
constexpr std::array<HeaderKind, 2> kHeaderKinds = {{
    {20240520, 1, TokenType::kUint16},  // GPT-2
    {20240801, 7, TokenType::kUint32},  // Llama 3
}};
// llm.c's multiple-choice questions have the same kind of header, but other content.
constexpr std::int32_t kEvaluationMagic = 20240522;

std::int32_t word_at(std::span<const std::byte> head, std::size_t index) {
  std::int32_t word = 0;
  std::memcpy(&word, head.data() + index * sizeof(word), sizeof(word));
  return word;
}

Result<std::optional<TokenLayout>> checked_header(const HeaderKind& kind,
                                                  std::span<const std::byte> head,
                                                  std::uint64_t file_bytes) {
  if (file_bytes < kTokenHeaderBytes) {
    return Error(ErrorCode::kCorrupt, "begins as an llm.c token file and ends after " +
                                          std::to_string(file_bytes) +
                                          " bytes, within the header of 1024: it is truncated");
  }
  const std::int32_t version = word_at(head, 1);
  if (version != kind.version) {
    return Error(ErrorCode::kUnsupported, "is an llm.c token file (magic " +
                                              std::to_string(kind.magic) + ") of version " +
                                              std::to_string(version) + ", but only version " +
                                              std::to_string(kind.version) +
                                              " is supported: write it again with that version");
  }
  const std::int32_t count = word_at(head, 2);
  if (count <= 0) {
    return Error(ErrorCode::kCorrupt,
                 "has an llm.c header that announces " + std::to_string(count) + " tokens");
  }
  const TokenLayout layout{kind.type, kTokenHeaderBytes, static_cast<std::uint64_t>(count)};
  const std::uint64_t expected_bytes =
      kTokenHeaderBytes + layout.token_count * token_bytes(kind.type);
  if (file_bytes != expected_bytes) {
    return Error(ErrorCode::kCorrupt,
                 "has a header that announces " + std::to_string(count) + " tokens, which makes " +
                     std::to_string(expected_bytes) + " bytes, but the file has " +
                     std::to_string(file_bytes) +
                     (file_bytes < expected_bytes ? ": it is truncated, or still being written"
                                                  : ": it is damaged, or not a token file"));
  }
  return std::optional(layout);
}

}  // namespace

std::string_view to_string(TokenType type) {
  return type == TokenType::kUint16 ? "uint16" : "uint32";
}

std::optional<TokenType> token_type_named(std::string_view name) {
  for (const TokenType type : {TokenType::kUint16, TokenType::kUint32}) {
    if (name == to_string(type)) return type;
  }
  return std::nullopt;
}

Result<std::optional<TokenLayout>> header_layout(std::span<const std::byte> head,
                                                 std::uint64_t file_bytes) {
  SLUICE_CHECK(head.size() == std::min(file_bytes, kTokenHeaderBytes),
               "head is the file's first bytes");
  if (head.size() < sizeof(std::int32_t)) return std::optional<TokenLayout>();
  const std::int32_t magic = word_at(head, 0);
  if (magic == kEvaluationMagic) {
    return Error(
        ErrorCode::kInvalidArgument,
        "contains llm.c's multiple-choice questions (magic 20240522), not the tokens of a text");
  }
  for (const HeaderKind& kind : kHeaderKinds) {
    if (magic == kind.magic) return checked_header(kind, head, file_bytes);
  }
  return std::optional<TokenLayout>();
}

Result<TokenLayout> raw_layout(TokenType type, std::uint64_t file_bytes) {
  if (file_bytes == 0) return Error(ErrorCode::kInvalidArgument, "is empty");
  const std::uint64_t width = token_bytes(type);
  if (file_bytes % width != 0) {
    return Error(ErrorCode::kCorrupt,
                 "has " + std::to_string(file_bytes) + " bytes, which is not a multiple of the " +
                     std::to_string(width) + " of a " + std::string(to_string(type)) +
                     " token: it is truncated, or has another token type");
  }
  return TokenLayout{type, 0, file_bytes / width};
}

}  // namespace sluice::data
