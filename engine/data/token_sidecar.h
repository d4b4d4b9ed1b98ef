// TokenSidecar: what tools/prepare records about a raw token file, in FILE.bin.json next to it.
//
// A JSON object. "format" is "sluice-tokens", "version" 1 or 2, "dtype" "uint16" or "uint32". The
// counts "tokens" and "vocab_size" are at least 1. The object "tokenizer" has a "kind", which is
// text; "end_of_text", a token; "sha256", the hash of the tokenizer.json next to it; and
// "vocabulary_sha256", a fingerprint of the tokens' meaning (tokenizer_vocabulary.h). All but
// "kind" may be null or missing. Version 2 has "documents" and "trained_tokens", counts of at least
// 1: token_documents.h. Other keys are for people and tools.
//
// Errors: sentences without the file's name.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "aio/result.h"
#include "engine/data/token_layout.h"

namespace sluice::data {

struct TokenSidecar {
  TokenType type = TokenType::kUint16;
  std::uint64_t token_count = 0;
  std::uint64_t vocab_size = 0;
  std::uint64_t documents = 0;  // 0: version 1, one text
  std::uint64_t trained_tokens = 0;
  std::string tokenizer;  // "bytes", "bpe", or "file"
  std::optional<std::int64_t> end_of_text;
  std::string tokenizer_sha256;  // empty if not given, as the next
  std::string vocabulary_sha256;
};

inline constexpr std::uint64_t kMaxSidecarBytes = 16 * 1024 * 1024;

Result<TokenSidecar> parse_token_sidecar(std::string_view text);

}  // namespace sluice::data
