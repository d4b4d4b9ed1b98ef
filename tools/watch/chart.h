// Chart: numbers over steps as characters: dots of Braille (2 x 4 a character), or '*' and 'o'
// where a terminal has ASCII alone.
//
// Neither FTXUI nor notcurses, which have charts, is in Debian 12, so these few lines draw them.
//
// Threads: pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tools/report/step_series.h"

namespace sluice::watch {

struct StepRange {
  std::int64_t first = 0;
  std::int64_t last = 0;
};

// `count` numbers of a column, at equal distances over the range: means where several steps fall on
// one, lines between neighbours where none does. NaN: nothing is known there.
std::vector<double> sampled(const report::StepSeries& series, std::size_t column,
                            const StepRange& range, std::size_t count);

struct ChartCell {
  char32_t character = U' ';
  int curve = -1;  // whose it is; -1: nobody's
};

struct ChartPicture {
  std::vector<std::vector<ChartCell>> rows;  // from above
  std::optional<double> least;               // at the lower edge; nothing: there is nothing to draw
  std::optional<double> most;
};

struct ChartOptions {
  int rows = 1;
  int columns = 1;
  bool unicode = true;
  bool log = false;        // what is not above 0 is left out
  bool from_zero = false;  // the lower edge
};

// Samples to be given to it: as many as `columns`, and twice with Unicode.
inline std::size_t chart_samples(const ChartOptions& options) {
  return static_cast<std::size_t>(options.columns) * (options.unicode ? 2 : 1);
}

// Later curves lie over earlier ones.
ChartPicture draw_chart(const std::vector<std::vector<double>>& curves,
                        const ChartOptions& options);

}  // namespace sluice::watch
