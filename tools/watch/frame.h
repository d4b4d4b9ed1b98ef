// Frame: the characters of a screen with their styles, independent of any terminal. Text outside of
// the frame is cut off.
//
// Threads: one at a time.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace sluice::watch {

enum class Style : std::uint8_t { kPlain, kQuiet, kTitle, kGood, kWarn, kBad, kCurve, kOther };

class Frame {
 public:
  struct Cell {
    char32_t character = U' ';  // 0: the right half of a wide character
    Style style = Style::kPlain;
  };
  Frame(int rows, int columns);

  int rows() const { return rows_; }
  int columns() const { return columns_; }

  // UTF-8. Characters that terminals cannot place (controls, combining marks, invalid UTF-8) become
  // '?'. Returns the column after the text. `width`: at most this many columns; -1: no limit.
  int put(int row, int column, std::string_view text, Style style = Style::kPlain, int width = -1);
  void set(int row, int column, char32_t character, Style style);
  // The text ends at the column before `end`.
  void put_right(int row, int end, std::string_view text, Style style = Style::kPlain);

  const std::vector<Cell>& row(int row) const { return cells_[static_cast<std::size_t>(row)]; }
  std::string text() const;  // all rows, each with a line feed and without trailing spaces

 private:
  int rows_;
  int columns_;
  std::vector<std::vector<Cell>> cells_;
};

// The number of columns that the text occupies.
int text_columns(std::string_view text);

// On one line, with '?' for characters that would move the cursor, change colours, hide text or
// reverse it.
std::string printable(std::string_view text);

// UTF-8 on one line for any locale, for output that is not a terminal: '?' replaces control
// characters and invalid UTF-8.
std::string without_controls(std::string_view text);

}  // namespace sluice::watch
