// TokenSidecar: what tools/prepare says about a raw token file, in FILE.bin.json beside it.
//
// A JSON object: "format" is "sluice-tokens", "version" 1 or 2, "dtype" "uint16" or "uint32",
// "tokens" and "vocab_size" counts of 1 or more, "tokenizer" an object whose "kind" is text; its
// "end_of_text" is a token, its "sha256" that of the tokenizer.json beside, its "vocabulary_sha256"
// a fingerprint of what the tokens mean (tokenizer_vocabulary.h); each may be null or missing.
// Version 2 has "documents" and "trained_tokens", counts of 1 or more: token_documents.h.
// Everything else in it is for people and tools.
// Errors are sentences without the file's name.
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
  std::uint64_t documents = 0;  // 0: of version 1, one text from begin to end
  std::uint64_t trained_tokens = 0;
  std::string tokenizer;  // "bytes", "bpe", or "file"
  std::optional<std::int64_t> end_of_text;
  std::string tokenizer_sha256;  // both empty: not given
  std::string vocabulary_sha256;
};

inline constexpr std::uint64_t kMaxSidecarBytes = 16 * 1024 * 1024;

Result<TokenSidecar> parse_token_sidecar(std::string_view text);

}  // namespace sluice::data
