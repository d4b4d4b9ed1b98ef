// A tokenizer's files in Hugging Face's format, and what they say: its tokens, and which of them
// begin and end a text.
//
// A tokenizer is found in a run's directory (kept_tokenizer.h), in a Hugging Face folder, and next
// to token files. For those made by tools/prepare, the sidecar names it, and tokenizer.json is in
// the same folder. The tokens that end a text come from the first of these that has them:
// generation_config.json, config.json, tokenizer_config.json, the token files' sidecar.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "aio/io_queue.h"
#include "aio/result.h"
#include "engine/weights/special_tokens.h"

namespace sluice::engine {

// TokenizerVocabulary: the text of each token of a tokenizer.json.
//
// Tokenizers with equal vocabularies give tokens the same meaning, whatever the format of their
// files: libraries that save a tokenizer.json again do not preserve its bytes.
//
// Errors: kCorrupt, a sentence without the file's name.
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

inline constexpr std::string_view kTokenizerName = "tokenizer.json";

struct TokenizerFiles {
  enum class Kind : std::uint8_t { kUnknown, kBytes, kFile };
  Kind kind = Kind::kUnknown;
  std::string path;          // kFile: path of tokenizer.json
  std::string source;        // the file that identifies it
  SpecialTokens special;     // may be known even if the tokenizer is not
  std::uint64_t tokens = 0;  // number of tokens; 0: unknown
  std::string fingerprint;   // TokenizerVocabulary::sha256; empty: unknown
  std::string note;          // kUnknown: the reason

  std::string folder() const;
  // "bytes (257 tokens)", "data/tokenizer.json (8192 tokens)"; kUnknown: "8192 tokens (SOURCE)".
  std::string description() const;
};

// In a Hugging Face folder, or any folder with a tokenizer.json. This and tokenizer_of_tokens()
// fail only if an existing file cannot be read.
Result<TokenizerFiles> tokenizer_in(aio::IoQueue& queue, const std::string& folder);
// The tokenizer that tools/prepare names in a token file's sidecar.
Result<TokenizerFiles> tokenizer_of_tokens(aio::IoQueue& queue, const std::string& token_file);
// "bytes", or the path of a tokenizer.json, which must exist.
Result<TokenizerFiles> tokenizer_named(aio::IoQueue& queue, const std::string& name);

// The text of its tokens. Not for kUnknown.
Result<TokenizerVocabulary> vocabulary_of(aio::IoQueue& queue, const TokenizerFiles& tokenizer);

// tokenizer.json, generation_config.json, and the files that may accompany them.
bool is_tokenizer_file(std::string_view name);

// Writes generation_config.json in `folder`, if the tokens that it names are known. Its other
// settings are kept, or taken from the file in the tokenizer's folder.
Status write_special_tokens(aio::IoQueue& queue, const TokenizerFiles& tokenizer,
                            const std::string& folder);

// Writes generation_config.json as above, tokenizer_config.json (so that AutoTokenizer loads it),
// other such files from the tokenizer's folder, and finally tokenizer.json. kUnknown: only
// generation_config.json.
Status write_tokenizer(aio::IoQueue& queue, const TokenizerFiles& tokenizer,
                       const std::string& folder, std::int64_t context_tokens);

}  // namespace sluice::engine
