// TokenizerVocabulary: which token of a tokenizer.json stands for what.
//
// Two tokenizers whose vocabularies are the same give tokens the same meaning, however their files
// are written: libraries that re-save a tokenizer.json do not keep its bytes.
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
  std::uint64_t size = 0;  // the largest token plus one
  // SHA-256 over the tokens in ascending order, for each its number, the length in bytes of what it
  // stands for, and that text itself: "5 3 the\n". As tools/corpus/vocabulary.py computes it.
  std::string sha256;
  std::map<std::string, std::int64_t, std::less<>> added;  // special tokens by what they stand for
  std::vector<std::pair<std::int64_t, std::string>> tokens;  // all of them, in ascending order

  std::optional<std::int64_t> added_token(std::string_view text) const;
  // What an added token stands for; empty: it is not one.
  std::string added_text(std::int64_t token) const;
};

Result<TokenizerVocabulary> parse_tokenizer_vocabulary(std::string_view tokenizer_json);

struct TokenDifference {
  std::int64_t token = 0;
  std::string a;  // what it stands for; empty: there is no such token
  std::string b;
};
// The first token in which two vocabularies differ. An added token that only one of them has is no
// difference: text is cut into the same tokens without it, and its number has no other meaning.
std::optional<TokenDifference> first_difference(const TokenizerVocabulary& a,
                                                const TokenizerVocabulary& b);

}  // namespace sluice::data
