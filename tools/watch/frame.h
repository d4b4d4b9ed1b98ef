// Frame: a screen's characters with their styles, before any terminal has them. What is put outside
// of it is cut off.
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
    char32_t character = U' ';  // 0: the right half of a wide one
    Style style = Style::kPlain;
  };
  Frame(int rows, int columns);

  int rows() const { return rows_; }
  int columns() const { return columns_; }

  // UTF-8. What a terminal has no place for (controls, combining marks, what is no UTF-8) is '?'.
  // Returns the column behind it. At most `width` columns; -1: as many as there are.
  int put(int row, int column, std::string_view text, Style style = Style::kPlain, int width = -1);
  void set(int row, int column, char32_t character, Style style);
  // Ends at the column before `end`.
  void put_right(int row, int end, std::string_view text, Style style = Style::kPlain);

  const std::vector<Cell>& row(int row) const { return cells_[static_cast<std::size_t>(row)]; }
  std::string text() const;  // of all rows, each with a line feed and without spaces at its end

 private:
  int rows_;
  int columns_;
  std::vector<std::vector<Cell>> cells_;
};

// How many columns the text takes.
int text_columns(std::string_view text);

// On one line, with '?' for what would move a cursor, change colours, hide text or reverse it.
std::string printable(std::string_view text);

// UTF-8 on one line, whatever the locale, for what is no terminal: '?' for control characters and
// for what is no UTF-8.
std::string without_controls(std::string_view text);

}  // namespace sluice::watch
