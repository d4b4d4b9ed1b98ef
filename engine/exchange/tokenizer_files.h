// A tokenizer's files, as Hugging Face's libraries have them, and what they say: which tokens there
// are, and which of them begin and end a text.
//
// It is known where a run keeps it (DIR/tokenizer/), where tools/prepare made the token files
// (their sidecars name it, and tokenizer.json lies beside them), and in a Hugging Face folder. The
// tokens that end a text come from generation_config.json, else from config.json, else from
// tokenizer_config.json, else from the token files' sidecar.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "aio/io_queue.h"
#include "aio/result.h"
#include "engine/weights/special_tokens.h"

namespace sluice::engine {

inline constexpr std::string_view kTokenizerName = "tokenizer.json";
inline constexpr std::string_view kTokenizerFolder = "tokenizer";  // of a run's directory

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
  // "bytes (257 tokens)", "8192 tokens, data/tokenizer.json".
  std::string description() const;
};

// In a Hugging Face folder, or any with a tokenizer.json. All of these: an error only where
// something that is there cannot be read.
Result<TokenizerFiles> tokenizer_in(aio::IoQueue& queue, const std::string& folder);
// What tools/prepare says of a token file.
Result<TokenizerFiles> tokenizer_of_tokens(aio::IoQueue& queue, const std::string& token_file);
// What a run's directory keeps.
Result<TokenizerFiles> tokenizer_of_run(aio::IoQueue& queue, const std::string& directory);
// "bytes", or the path of a tokenizer.json, which has to be there.
Result<TokenizerFiles> tokenizer_named(aio::IoQueue& queue, const std::string& name);

// The run's, else that of its token files. `directory`: empty where there is none.
Result<TokenizerFiles> find_tokenizer(aio::IoQueue& queue, const std::string& directory,
                                      const std::vector<std::string>& token_files);

// Puts tokenizer.json, and tokenizer_config.json so that AutoTokenizer loads it, into `folder`;
// where there are more such files in the tokenizer's folder, them too; and generation_config.json
// where the tokens that it names are known. kUnknown: that file alone.
Status write_tokenizer(aio::IoQueue& queue, const TokenizerFiles& tokenizer,
                       const std::string& folder, std::int64_t context_tokens);

// The same into the run's directory, in place of what was kept there before; nothing where it is
// the one that is there, or unknown altogether.
Status keep_tokenizer(aio::IoQueue& queue, const TokenizerFiles& tokenizer,
                      const std::string& directory, std::int64_t context_tokens);

// Takes what keep_tokenizer() has written out of a run's directory, and nothing else.
Status remove_kept_tokenizer(aio::FileSystem& files, const std::string& directory);

}  // namespace sluice::engine
