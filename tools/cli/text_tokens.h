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

// What a user says to a model that was trained to chat.
struct ChatPrompt {
  std::string system;  // empty: the template's own, if it has one
  std::string user;
};

class TextTokens {
 public:
  virtual ~TextTokens() = default;

  // The text's tokens, behind those that the tokenizer puts before every text; those of decode()
  // continue them.
  virtual Result<std::vector<std::int64_t>> encode(const std::string& text) = 0;
  // Likewise of a conversation, up to where the assistant begins. Refused but by tool_tokens() with
  // `chat`.
  virtual Result<std::vector<std::int64_t>> encode_chat(const ChatPrompt& prompt);
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
struct ToolTokensOptions {
  std::string tool;  // the path of tools/tokens
  std::string json;  // of tokenizer.json
  bool chat = false;
  std::string chat_template;  // with `chat`; empty: that of tokenizer.json's folder
};
Result<std::unique_ptr<TextTokens>> tool_tokens(const ToolTokensOptions& options);

}  // namespace sluice::tools
