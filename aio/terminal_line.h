// TerminalLine: one line on a terminal that is rewritten in place. Without a terminal it does
// nothing.
//
// Threads: one at a time.
#pragma once

#include <chrono>
#include <cstdio>
#include <string_view>

namespace sluice {

class TerminalLine {
 public:
  // Shown only if `out` is a terminal; `out` must outlive the line.
  explicit TerminalLine(std::FILE* out = stderr);
  ~TerminalLine() { clear(); }
  TerminalLine(const TerminalLine&) = delete;
  TerminalLine& operator=(const TerminalLine&) = delete;

  // Hides all lines from now on; called by main.
  static void hide_all();

  bool is_terminal() const { return is_terminal_; }
  // Whether show() would show anything now: it does so at most ten times a second. A caller can
  // check this before composing text.
  bool due() const;
  // Replaces the line, cut to the terminal's width.
  void show(std::string_view text);
  // Clears the line; call it before printing anything else.
  void clear();

 private:
  std::FILE* out_;
  const bool is_terminal_;
  bool shown_ = false;
  std::chrono::steady_clock::time_point last_{};
};

}  // namespace sluice
