#include "tools/cli/chat_input.h"

#include <poll.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <iostream>
#include <string_view>
#include <utility>

namespace sluice::tools {
namespace {

constexpr std::string_view kQuotes = "\"\"\"";
constexpr std::string_view kSpace = " \t\r\n\v\f";
constexpr int kInputPollMs = 100;

bool is_blank(std::string_view text) {
  return text.find_first_not_of(kSpace) == std::string_view::npos;
}

std::string_view without_space_at_end(std::string_view text) {
  return text.substr(0, text.find_last_not_of(kSpace) + 1);
}

// Keeps a text that is too long recognisable, and its end, which may be half of a """.
void bound(std::string& text) {
  constexpr std::size_t kBegin = ChatInput::kMostBytes + 6;  // read_quoted() removes line ends
  constexpr std::size_t kEnd = 8;
  if (text.size() > kBegin + kEnd) text.erase(kBegin, text.size() - kBegin - kEnd);
}

}  // namespace

ChatInput::ChatInput(int descriptor, std::function<bool()> stop)
    : descriptor_(descriptor), stop_(std::move(stop)), is_terminal_(isatty(descriptor) == 1) {}

ChatInput::Entry ChatInput::next() {
  std::string text;
  while (read_line("> ", text)) {
    const bool is_quoted = text.starts_with(kQuotes);
    if (is_quoted && !read_quoted(text.erase(0, kQuotes.size()))) break;
    if (text.size() > kMostBytes) return {.kind = Kind::kTooLong};
    if (is_blank(text)) continue;
    if (!is_quoted && text.front() == '/')
      return {.kind = Kind::kCommand, .text = std::string(without_space_at_end(text))};
    return {.kind = Kind::kMessage, .text = std::move(text)};
  }
  return {};
}

bool ChatInput::read_quoted(std::string& text) {
  std::string line;
  while (!without_space_at_end(text).ends_with(kQuotes)) {
    if (!read_line("... ", line)) return !stopped_;  // the end of the input ends the message too
    text += "\n" + line;
    // The end must be seen in a text that is too long, too.
    if (text.size() > kMostBytes && !without_space_at_end(line).ends_with(kQuotes)) bound(text);
  }
  text.erase(without_space_at_end(text).size() - kQuotes.size());
  if (text.starts_with('\n')) text.erase(0, 1);
  if (text.ends_with('\n')) text.pop_back();
  return true;
}

bool ChatInput::read_line(const char* prompt, std::string& line) {
  if (is_terminal_) std::cerr << prompt << std::flush;
  line.clear();
  std::array<char, 4096> piece{};
  while (true) {
    const std::size_t end = read_.find('\n');
    const bool is_whole = end != std::string::npos;
    line.append(read_, 0, end);
    read_.erase(0, is_whole ? end + 1 : end);
    if (is_whole && line.ends_with('\r')) line.pop_back();
    if (is_whole) return true;
    bound(line);
    if (ended_) return !line.empty();
    stopped_ = stop_();
    if (stopped_) return false;
    pollfd waiting{.fd = descriptor_, .events = POLLIN, .revents = 0};
    if (poll(&waiting, 1, kInputPollMs) <= 0) continue;
    const ssize_t count = read(descriptor_, piece.data(), piece.size());
    if (count < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (count <= 0)
      ended_ = true;
    else
      read_.append(piece.data(), static_cast<std::size_t>(count));
  }
}

}  // namespace sluice::tools
