// Frame: the characters of a screen with their styles, independent of any terminal. Text outside of
// the frame is cut off.
//
// Threads: one at a time.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tools/report/step_series.h"

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

// Chart: draws numbers over steps as characters: Braille dots (2 x 4 per character), or '*' and 'o'
// on ASCII terminals.
//
// Debian 12 has neither FTXUI nor notcurses, which draw charts, so this file does.
//
// Threads: pure functions.
struct StepRange {
  std::int64_t first = 0;
  std::int64_t last = 0;
};

// `count` values of a column at equal distances over the range: the mean if several steps fall on
// one value, interpolated linearly if none does. NaN: unknown.
std::vector<double> sampled(const report::StepSeries& series, std::size_t column,
                            const StepRange& range, std::size_t count);

struct ChartCell {
  char32_t character = U' ';
  int curve = -1;  // index of the curve that drew it; -1: none
};

struct ChartPicture {
  std::vector<std::vector<ChartCell>> rows;  // top to bottom
  std::optional<double> least;               // value of the lower edge; nullopt: nothing to draw
  std::optional<double> most;
};

struct ChartOptions {
  int rows = 1;
  int columns = 1;
  bool unicode = true;
  bool log = false;        // leaves out values that are not above 0
  bool from_zero = false;  // the lower edge is 0
};

// The number of samples that draw_chart() needs: `columns`, or twice as many with Unicode.
inline std::size_t chart_samples(const ChartOptions& options) {
  return static_cast<std::size_t>(options.columns) * (options.unicode ? 2 : 1);
}

// Later curves are drawn over earlier ones.
ChartPicture draw_chart(const std::vector<std::vector<double>>& curves,
                        const ChartOptions& options);

}  // namespace sluice::watch
