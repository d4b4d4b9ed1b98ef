// Which tokenizer a run's tokens are of, and its files as Hugging Face's libraries want them.
//
// It is known where the run was imported with one (tokenizer.json in the run's directory), or where
// tools/prepare made the token files (their sidecars say which, and tokenizer.json lies beside
// them).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "aio/io_queue.h"
#include "aio/result.h"

namespace sluice::engine {

inline constexpr std::string_view kTokenizerName = "tokenizer.json";

struct TokenizerFiles {
  enum class Kind : std::uint8_t { kUnknown, kBytes, kFile };
  Kind kind = Kind::kUnknown;
  std::string folder;                       // kFile: where tokenizer.json is
  std::optional<std::int64_t> end_of_text;  // its token
  std::string note;                         // kUnknown: why

  std::string json_path() const { return folder + "/" + std::string(kTokenizerName); }
};

// `run_directory`: empty where there is none. `token_files`: the run's data.train. An error only
// where something that is there cannot be read.
Result<TokenizerFiles> find_tokenizer(aio::IoQueue& queue, const std::string& run_directory,
                                      const std::vector<std::string>& token_files);

// Puts tokenizer.json, and tokenizer_config.json so that AutoTokenizer loads it, into `folder`;
// where there are more such files in the tokenizer's folder, them too. kUnknown: nothing.
Status write_tokenizer(aio::IoQueue& queue, const TokenizerFiles& tokenizer,
                       const std::string& folder, std::int64_t context_tokens);

// The files above that are in `from`, into `to`; false where there is no tokenizer.json.
Result<bool> copy_tokenizer(aio::IoQueue& queue, const std::string& from, const std::string& to);

}  // namespace sluice::engine
