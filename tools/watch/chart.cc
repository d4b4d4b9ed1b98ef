#include "tools/watch/chart.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace sluice::watch {
namespace {

constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
constexpr char32_t kBlankBraille = 0x2800;

// By row and column of a character's dots.
constexpr std::array<std::array<char32_t, 2>, 4> kDots = {
    {{0x01, 0x08}, {0x02, 0x10}, {0x04, 0x20}, {0x40, 0x80}}};

// Interpolates between known neighbours.
void fill_gaps(std::vector<double>& values) {
  std::optional<std::size_t> before;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (!std::isfinite(values[i])) continue;
    if (before)
      for (std::size_t k = *before + 1; k < i; ++k)
        values[k] = values[*before] + (values[i] - values[*before]) *
                                          static_cast<double>(k - *before) /
                                          static_cast<double>(i - *before);
    before = i;
  }
}

}  // namespace

std::vector<double> sampled(const report::StepSeries& series, std::size_t column,
                            const StepRange& range, std::size_t count) {
  std::vector<report::StepSeries::Cell> cells(count);
  const double width = static_cast<double>(range.last - range.first);
  for (const auto& bucket : series.buckets()) {
    if (bucket.cells[column].count == 0 || bucket.last_step < range.first ||
        bucket.first_step > range.last)
      continue;
    const double middle =
        0.5 * static_cast<double>(bucket.first_step) + 0.5 * static_cast<double>(bucket.last_step);
    const double place = width > 0 ? (middle - static_cast<double>(range.first)) / width : 1;
    const auto at =
        static_cast<std::size_t>(std::clamp(place, 0.0, 1.0) * static_cast<double>(count - 1));
    cells[at].add(bucket.cells[column]);
  }
  std::vector<double> values(count, kUnknown);
  for (std::size_t i = 0; i < count; ++i)
    if (cells[i].count > 0) values[i] = cells[i].mean();
  fill_gaps(values);
  return values;
}

ChartPicture draw_chart(const std::vector<std::vector<double>>& curves,
                        const ChartOptions& options) {
  ChartPicture picture;
  picture.rows.assign(static_cast<std::size_t>(options.rows),
                      std::vector<ChartCell>(static_cast<std::size_t>(options.columns)));
  const auto shown = [&](double value) {
    return std::isfinite(value) && (!options.log || value > 0);
  };
  const auto scaled = [&](double value) { return options.log ? std::log(value) : value; };
  double least = std::numeric_limits<double>::infinity();
  double most = -least;
  for (const auto& curve : curves)
    for (const double value : curve)
      if (shown(value)) {
        least = std::min(least, value);
        most = std::max(most, value);
      }
  if (least > most) return picture;
  if (options.from_zero && !options.log) least = std::min(least, 0.0);
  picture.least = least;
  picture.most = most;

  const int down = options.rows * (options.unicode ? 4 : 1);
  const double span = scaled(most) - scaled(least);
  const auto height = [&](double value) {  // from the top
    // Halved, so that the span of the largest numbers is finite.
    const double part = span > 0 && std::isfinite(span)
                            ? (scaled(value) - scaled(least)) / span
                            : (value / 2 - least / 2) / std::max(most / 2 - least / 2, 1e-300);
    return down - 1 - static_cast<int>(std::lround(std::clamp(part, 0.0, 1.0) * (down - 1)));
  };
  const auto set = [&](std::size_t x, int y, int curve) {
    const auto row = static_cast<std::size_t>(options.unicode ? y / 4 : y);
    const std::size_t column = options.unicode ? x / 2 : x;
    if (column >= picture.rows[row].size()) return;
    ChartCell& cell = picture.rows[row][column];
    if (options.unicode) {
      if (cell.character == U' ') cell.character = kBlankBraille;
      cell.character |= kDots[static_cast<std::size_t>(y % 4)][x % 2];
    } else {
      cell.character = curve == 0 ? U'*' : U'o';
    }
    cell.curve = curve;
  };
  for (std::size_t c = 0; c < curves.size(); ++c) {
    std::optional<int> before;
    for (std::size_t x = 0; x < curves[c].size(); ++x) {
      if (!shown(curves[c][x])) {
        before.reset();
        continue;
      }
      const int y = height(curves[c][x]);
      // Draws from the last point to this one, so that the curve has no gaps.
      const int from = before ? std::clamp(*before, y - down, y + down) : y;
      for (int at = std::min(from, y) + (from < y ? 1 : 0);
           at <= std::max(from, y) - (from > y ? 1 : 0); ++at)
        set(x, at, static_cast<int>(c));
      set(x, y, static_cast<int>(c));
      before = y;
    }
  }
  return picture;
}

}  // namespace sluice::watch
