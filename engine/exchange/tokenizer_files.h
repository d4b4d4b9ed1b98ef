// A tokenizer's files, as Hugging Face's libraries have them, and what they say: which tokens there
// are, and which of them begin and end a text.
//
// It is known where a run keeps it (kept_tokenizer.h), where tools/prepare made the token files
// (their sidecars name it, and tokenizer.json lies beside them), and in a Hugging Face folder. The
// tokens that end a text come from generation_config.json, else from config.json, else from
// tokenizer_config.json, else from the token files' sidecar.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "aio/io_queue.h"
#include "aio/result.h"
#include "engine/data/tokenizer_vocabulary.h"
#include "engine/weights/special_tokens.h"

namespace sluice::engine {

inline constexpr std::string_view kTokenizerName = "tokenizer.json";

struct TokenizerFiles {
  enum class Kind : std::uint8_t { kUnknown, kBytes, kFile };
  Kind kind = Kind::kUnknown;
  std::string path;          // kFile: of the tokenizer.json
  std::string source;        // the file that says which it is
  SpecialTokens special;     // may be known where the tokenizer is not
  std::uint64_t tokens = 0;  // how many it has; 0: not known
  std::string fingerprint;   // TokenizerVocabulary::sha256; empty: not known
  std::string note;          // kUnknown: why

  std::string folder() const;
  // "bytes (257 tokens)", "data/tokenizer.json (8192 tokens)"; kUnknown: "8192 tokens (SOURCE)".
  std::string description() const;
};

// In a Hugging Face folder, or any with a tokenizer.json. All of these: an error only where
// something that is there cannot be read.
Result<TokenizerFiles> tokenizer_in(aio::IoQueue& queue, const std::string& folder);
// What tools/prepare says of a token file.
Result<TokenizerFiles> tokenizer_of_tokens(aio::IoQueue& queue, const std::string& token_file);
// "bytes", or the path of a tokenizer.json, which has to be there.
Result<TokenizerFiles> tokenizer_named(aio::IoQueue& queue, const std::string& name);

// What its tokens stand for. Not of kUnknown.
Result<data::TokenizerVocabulary> vocabulary_of(aio::IoQueue& queue,
                                                const TokenizerFiles& tokenizer);

// tokenizer.json, generation_config.json, and what may be beside them.
bool is_tokenizer_file(std::string_view name);

// generation_config.json in `folder`, where the tokens that it names are known; its other settings,
// or those of the one in the tokenizer's folder, stay.
Status write_special_tokens(aio::IoQueue& queue, const TokenizerFiles& tokenizer,
                            const std::string& folder);

// Puts that, tokenizer_config.json so that AutoTokenizer loads it, other such files from the
// tokenizer's folder, and then tokenizer.json into `folder`. kUnknown: generation_config.json
// alone.
Status write_tokenizer(aio::IoQueue& queue, const TokenizerFiles& tokenizer,
                       const std::string& folder, std::int64_t context_tokens);

}  // namespace sluice::engine
