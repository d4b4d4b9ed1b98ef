// ChatInput: what a user types to `sluice chat`, or a script writes to it: messages and commands.
//
// A line is a message. Text between """ and """ is a message of several lines. A line that begins
// with a slash is a command. Lines of white space are skipped. Prompts go to standard error, and
// only if the input is a terminal.
//
// Memory:  a message takes at most kMostBytes; a longer one is read to its end and dropped.
// Threads: one.
// Errors:  an input that cannot be read has ended.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

namespace sluice::tools {

class ChatInput {
 public:
  static constexpr std::size_t kMostBytes = std::size_t{1} << 20;

  // `stop` is called ten times a second while the input is silent; true ends the input.
  ChatInput(int descriptor, std::function<bool()> stop);

  enum class Kind : std::uint8_t { kMessage, kCommand, kTooLong, kEnd };
  struct Entry {
    Kind kind = Kind::kEnd;
    std::string text = {};  // of messages and commands
  };
  Entry next();

  bool is_terminal() const { return is_terminal_; }

 private:
  bool read_line(const char* prompt, std::string& line);  // false: the input has ended
  bool read_quoted(std::string& text);                    // `text`: the first line, without """

  const int descriptor_;
  const std::function<bool()> stop_;
  const bool is_terminal_;
  bool ended_ = false;
  bool stopped_ = false;
  std::string read_;  // bytes after the last line
};

}  // namespace sluice::tools
