// TokenSidecar: what tools/prepare records about a raw token file, in FILE.bin.json next to it.
//
// A JSON object. "format" is "sluice-tokens", "version" 1 or 2, "dtype" "uint16" or "uint32". The
// counts "tokens" and "vocab_size" are at least 1. The object "tokenizer" has a "kind", which is
// text; "end_of_text", a token; "sha256", the hash of the tokenizer.json next to it; and
// "vocabulary_sha256", a fingerprint of the tokens' meaning (engine/exchange/tokenizer_files.h).
// All but "kind" may be null or missing. Version 2 has "documents" and "trained_tokens", counts of
// at least 1: TokenDocuments. Other keys are for people and tools.
//
// Errors: sentences without the file's name.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

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

// TokenRecord: the informational part of a sidecar: the source of a token file's text, and what the
// preparation left out.
//
// Everything may be missing, as in files of older versions; the fields are then empty.
// Errors: none.
struct TokenRecord {
  std::optional<std::uint64_t> sources;  // files that were read
  std::optional<std::uint64_t> source_bytes;
  std::optional<std::uint64_t> documents;  // also for a file that is one text
  std::string train_on;                    // for conversations: "assistant", "last", "all"

  // Statistics of the whole preparation, which may have written more files.
  struct Preparation {
    std::optional<std::uint64_t> conversations;  // read; empty: the source was text
    std::uint64_t cut = 0;                       // conversations
    std::uint64_t replaced = 0;                  // sources or conversations that were not UTF-8
    std::vector<std::pair<std::string, std::uint64_t>>
        left_out;  // by reason, the most frequent first
  };
  std::optional<Preparation> preparation;
};

TokenRecord parse_token_record(std::string_view sidecar_text);

}  // namespace sluice::data
