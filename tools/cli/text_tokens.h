// TextTokens: a tokenizer for generation: encodes the prompt and decodes tokens as they are
// generated.
//
// For a byte tokenizer, bytes are tokens. A tokenizer.json is used through tools/tokens, a child
// process.
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

// Utf8Stream: turns bytes that arrive one by one into text that never ends within a character.
// Invalid UTF-8 becomes U+FFFD, one for each part that cannot begin a character (as in Python and
// browsers).
class Utf8Stream {
 public:
  // Returns the text that this byte completes.
  std::string push(unsigned char byte);
  // Returns the rest: a character that was not completed.
  std::string finish();

 private:
  std::string pending_;  // the beginning of one character
};

// One message of a conversation. Without a system message the template may add its own.
struct ChatMessage {
  std::string role;  // "system", "user" or "assistant"
  std::string content;
};
using ChatMessages = std::vector<ChatMessage>;

class TextTokens {
 public:
  virtual ~TextTokens() = default;

  // The text's tokens, after those that the tokenizer puts before every text. decode() continues
  // from the last one.
  virtual Result<std::vector<std::int64_t>> encode(const std::string& text) = 0;
  // The tokens of a conversation up to where the assistant's turn begins. Only tool_tokens() with
  // `chat` supports this.
  virtual Result<std::vector<std::int64_t>> encode_chat(const ChatMessages& messages);
  // The text that this token completes; may be empty.
  virtual Result<std::string> decode(std::int64_t token) = 0;
  // Returns the text of an incomplete sequence at the end.
  virtual Result<std::string> finish() = 0;
  // Resets the decoder: the next token begins a new text.
  virtual Status restart() = 0;
};

std::unique_ptr<TextTokens> byte_tokens();
// The path of tools/tokens: `named` if it is not empty; otherwise in the source tree in which this
// program was built (build/bin/sluice -> tools/tokens), or in the installation (bin/sluice ->
// share/sluice/tools/tokens).
Result<std::string> find_tokens_tool(const std::string& named);
struct ToolTokensOptions {
  std::string tool;  // the path of tools/tokens
  std::string json;  // the path of tokenizer.json
  bool chat = false;
  std::string chat_template;  // with `chat`; empty: the one in tokenizer.json's folder
};
Result<std::unique_ptr<TextTokens>> tool_tokens(const ToolTokensOptions& options);

}  // namespace sluice::tools
