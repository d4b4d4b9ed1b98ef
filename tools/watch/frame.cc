#include "tools/watch/frame.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cwchar>
#include <limits>

namespace sluice::watch {
namespace {

constexpr char32_t kReplaced = U'?';

// Removes and returns the first character; invalid UTF-8 becomes kReplaced, byte by byte.
char32_t take_character(std::string_view& text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  std::size_t more = 0;
  char32_t code = lead;
  if (lead >= 0xf0 && lead < 0xf5) {
    more = 3;
    code = lead & 0x07U;
  } else if (lead >= 0xe0 && lead < 0xf0) {
    more = 2;
    code = lead & 0x0fU;
  } else if (lead >= 0xc2 && lead < 0xe0) {
    more = 1;
    code = lead & 0x1fU;
  } else if (lead >= 0x80) {
    text.remove_prefix(1);
    return kReplaced;
  }
  for (std::size_t i = 1; i <= more; ++i) {
    if (i >= text.size() || (byte(i) & 0xc0U) != 0x80U) {
      text.remove_prefix(1);
      return kReplaced;
    }
    code = code << 6U | (byte(i) & 0x3fU);
  }
  text.remove_prefix(more + 1);
  return code;
}

// 1 or 2. Characters of width zero, or unprintable in this locale, are replaced.
int width_of(char32_t& character) {
  if (character >= 0x20 && character < 0x7f) return 1;
  const int width = ::wcwidth(static_cast<wchar_t>(character));
  if (width >= 1) return width;
  character = kReplaced;
  return 1;
}

void append_utf8(std::string& out, char32_t code) {
  const auto add = [&](char32_t byte) { out += static_cast<char>(byte); };
  if (code < 0x80) {
    add(code);
  } else if (code < 0x800) {
    add(0xc0 | code >> 6U);
    add(0x80 | (code & 0x3fU));
  } else {
    if (code < 0x10000) {
      add(0xe0 | code >> 12U);
    } else {
      add(0xf0 | code >> 18U);
      add(0x80 | (code >> 12U & 0x3fU));
    }
    add(0x80 | (code >> 6U & 0x3fU));
    add(0x80 | (code & 0x3fU));
  }
}

}  // namespace

Frame::Frame(int rows, int columns)
    : rows_(std::max(rows, 0)),
      columns_(std::max(columns, 0)),
      cells_(static_cast<std::size_t>(rows_),
             std::vector<Cell>(static_cast<std::size_t>(columns_))) {}

void Frame::set(int row, int column, char32_t character, Style style) {
  if (row < 0 || row >= rows_ || column < 0 || column >= columns_) return;
  cells_[static_cast<std::size_t>(row)][static_cast<std::size_t>(column)] = {.character = character,
                                                                             .style = style};
}

int Frame::put(int row, int column, std::string_view text, Style style, int width) {
  const int end = width < 0 ? columns_ : std::min(columns_, column + width);
  while (!text.empty()) {
    char32_t character = take_character(text);
    const int wide = width_of(character);
    if (column + wide > end) break;
    set(row, column, character, style);
    if (wide == 2) set(row, column + 1, 0, style);
    column += wide;
  }
  return column;
}

void Frame::put_right(int row, int end, std::string_view text, Style style) {
  put(row, std::max(0, end - text_columns(text)), text, style);
}

std::string Frame::text() const {
  std::string all;
  for (const auto& row : cells_) {
    std::string line;
    for (const Cell& cell : row)
      if (cell.character != 0) append_utf8(line, cell.character);
    line.resize(line.find_last_not_of(' ') + 1);
    all += line + "\n";
  }
  return all;
}

int text_columns(std::string_view text) {
  int columns = 0;
  while (!text.empty()) {
    char32_t character = take_character(text);
    columns += width_of(character);
  }
  return columns;
}

std::string printable(std::string_view text) {
  std::string shown;
  while (!text.empty()) {
    char32_t character = take_character(text);
    width_of(character);
    append_utf8(shown, character);
  }
  return shown;
}

std::string without_controls(std::string_view text) {
  std::string shown;
  while (!text.empty()) {
    const char32_t code = take_character(text);
    const bool is_control = code < 0x20 || (code >= 0x7f && code < 0xa0);
    const bool is_none = (code >= 0xd800 && code < 0xe000) || code > 0x10ffff;
    append_utf8(shown, is_control || is_none ? kReplaced : code);
  }
  return shown;
}

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
