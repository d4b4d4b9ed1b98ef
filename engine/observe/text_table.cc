#include "engine/observe/text_table.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

namespace sluice::engine {
namespace {

constexpr std::size_t kGap = 2;
constexpr double kLongestSeconds = 1e9;

template <typename... Values>
std::string formatted(const char* format, Values... values) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), format, values...);
  return text.data();
}

}  // namespace

std::string aligned(const std::vector<TextRow>& rows) {
  std::vector<std::size_t> widths;
  for (const TextRow& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const TextRow& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      const std::string spaces(widths[i] - row[i].size(), ' ');
      if (i > 0) line += std::string(kGap, ' ');
      line += i == 0 ? row[i] + spaces : spaces + row[i];
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

std::string decimals(double value, int digits) { return formatted("%.*f", digits, value); }

std::string duration(double seconds) {
  if (!std::isfinite(seconds)) return "?";
  if (seconds < 59.95) return formatted("%.1f s", std::max(seconds, 0.0));
  const long whole = std::lround(std::min(seconds, kLongestSeconds));
  if (whole < 3600) return formatted("%ld:%02ld", whole / 60, whole % 60);
  return formatted("%ld:%02ld:%02ld", whole / 3600, whole / 60 % 60, whole % 60);
}

std::string compact(double value) {
  if (value < 999.5) return formatted("%.0f", value);
  if (value < 99.95e3) return formatted("%.1fk", value / 1e3);
  if (value < 999.5e3) return formatted("%.0fk", value / 1e3);
  if (value < 999.995e6) return formatted("%.2fM", value / 1e6);
  return formatted("%.2fB", value / 1e9);
}

}  // namespace sluice::engine
