// Chart: draws numbers over steps as characters: Braille dots (2 x 4 per character), or '*' and 'o'
// on ASCII terminals.
//
// Debian 12 has neither FTXUI nor notcurses, which draw charts, so this file does.
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
