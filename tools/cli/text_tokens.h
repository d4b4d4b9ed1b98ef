// TextTokens: a tokenizer as generation needs it: the prompt's tokens, and text as tokens come.
//
// Bytes are their own tokens. A tokenizer.json is used through tools/tokens, a child process.
//
// Threads: one.
// Errors:  as sentences that say what is missing, or which text or token is at fault.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "aio/result.h"

namespace sluice::tools {

class TextTokens {
 public:
  virtual ~TextTokens() = default;

  // The text's tokens, which those of decode() continue.
  virtual Result<std::vector<std::int64_t>> encode(const std::string& text) = 0;
  // The text that a token completes; may be empty.
  virtual Result<std::string> decode(std::int64_t token) = 0;
  // What the tokens so far leave incomplete.
  virtual Result<std::string> finish() = 0;
  // The next token continues nothing.
  virtual Status restart() = 0;
};

std::unique_ptr<TextTokens> byte_tokens();
// Where tools/tokens is: `named`; where that is empty, in the source tree in which this program was
// built (build/bin/sluice -> tools/tokens), or where it was installed (bin/sluice ->
// share/sluice/tools/tokens).
Result<std::string> find_tokens_tool(const std::string& named);
// `tool`: the path of tools/tokens. `json`: of tokenizer.json.
Result<std::unique_ptr<TextTokens>> tool_tokens(const std::string& tool, const std::string& json);

}  // namespace sluice::tools
