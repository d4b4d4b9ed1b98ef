// TokenizerVocabulary: the text of each token of a tokenizer.json.
//
// Tokenizers with equal vocabularies give tokens the same meaning, whatever the format of their
// files: libraries that save a tokenizer.json again do not preserve its bytes.
//
// Errors: kCorrupt, a sentence without the file's name.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "aio/result.h"

namespace sluice::data {

inline constexpr std::uint64_t kMaxTokenizerBytes = std::uint64_t{256} << 20;

struct TokenizerVocabulary {
  std::uint64_t size = 0;  // the largest token plus 1
  // SHA-256 over the tokens in ascending order. Each adds its number, the length in bytes of its
  // text, and the text itself: "5 3 the\n". tools/corpus/vocabulary.py computes the same.
  std::string sha256;
  std::map<std::string, std::int64_t, std::less<>> added;    // special tokens by their text
  std::vector<std::pair<std::int64_t, std::string>> tokens;  // all tokens, ascending

  std::optional<std::int64_t> added_token(std::string_view text) const;
  // The text of an added token; empty for any other token.
  std::string added_text(std::int64_t token) const;
};

Result<TokenizerVocabulary> parse_tokenizer_vocabulary(std::string_view tokenizer_json);

struct TokenDifference {
  std::int64_t token = 0;
  std::string a;  // its text; empty: no such token
  std::string b;
};
// The first token in which two vocabularies differ. An added token that only one of them has is not
// a difference: without it, text is split into the same tokens, and its number has no other
// meaning.
std::optional<TokenDifference> first_difference(const TokenizerVocabulary& a,
                                                const TokenizerVocabulary& b);

}  // namespace sluice::data
