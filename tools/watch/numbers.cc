#include "tools/watch/numbers.h"

#include <array>
#include <cstdio>
#include <ctime>

namespace sluice::watch {
namespace {

constexpr const char* kMissing = "-";

template <typename... Values>
std::string formatted(const char* format, Values... values) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), format, values...);  // NOLINT(*-vararg)
  return text.data();
}

bool is_known(const std::optional<double>& value) { return value && std::isfinite(*value); }

template <std::size_t kUnits>
std::string scaled(std::optional<double> value, double step,
                   const std::array<const char*, kUnits>& units) {
  if (!is_known(value)) return kMissing;
  double size = *value;
  std::size_t at = 0;
  // Not "1000k".
  while (std::abs(size) >= step * 0.9995 && at + 1 < units.size()) {
    size /= step;
    ++at;
  }
  const double magnitude = std::abs(size);
  const int decimals = at == 0 || magnitude >= 99.95 ? 0 : magnitude >= 9.995 ? 1 : 2;
  if (at == 0 && size != std::floor(size)) return formatted("%.3g%s", size, units[at]);
  return formatted("%.*f%s", decimals, size, units[at]);
}

}  // namespace

std::string number_text(std::optional<double> value, int digits) {
  if (!is_known(value)) return kMissing;
  const double size = std::abs(*value);
  if (size != 0 && (size < 1e-3 || size >= 1e7)) return formatted("%.2e", *value);
  return formatted("%.*g", size >= 1000 ? std::max(digits, 7) : digits, *value);
}

std::string count_text(std::optional<double> value) {
  return scaled<6>(value, 1000, {"", "k", "M", "G", "T", "P"});
}

std::string bytes_text(std::optional<double> value) {
  return scaled<6>(value, 1024, {" B", " KiB", " MiB", " GiB", " TiB", " PiB"});
}

std::string traffic_text(std::optional<double> value) {
  return scaled<6>(value, 1000, {" B", " kB", " MB", " GB", " TB", " PB"});
}

std::string milliseconds_text(std::optional<double> value) {
  if (!is_known(value)) return kMissing;
  return *value < 1000 ? formatted("%.3g ms", *value) : formatted("%.4g s", *value / 1000);
}

std::string duration_text(std::optional<double> seconds) {
  if (!is_known(seconds) || *seconds < 0) return kMissing;
  constexpr double kMostS = 3.2e11;  // ten thousand years
  if (*seconds > kMostS) return kMissing;
  if (*seconds < 60) return formatted(*seconds < 10 ? "%.1f s" : "%.0f s", *seconds);
  const auto all = static_cast<std::int64_t>(std::llround(*seconds));
  const auto d = static_cast<long long>(all / 86400);
  const auto h = static_cast<int>(all / 3600 % 24);
  const auto m = static_cast<int>(all / 60 % 60);
  if (d > 0) return formatted("%lld d %d h", d, h);
  if (h > 0) return formatted("%d h %d min", h, m);
  return formatted("%d min %d s", m, static_cast<int>(all % 60));
}

std::string share_text(std::optional<double> value) {
  return is_known(value) ? formatted("%.0f%%", 100 * *value) : kMissing;
}

std::string percent_text(std::optional<double> percent) {
  return percent ? share_text(*percent / 100) : "-";
}

std::string clock_text(double unix_s) {
  if (!(unix_s > 0 && unix_s < 1e12)) return "--:--:--";
  const auto time = static_cast<std::time_t>(unix_s);
  std::tm local{};
  std::array<char, 16> text{};
  if (::localtime_r(&time, &local) == nullptr ||
      std::strftime(text.data(), text.size(), "%H:%M:%S", &local) == 0)
    return "--:--:--";
  return text.data();
}

}  // namespace sluice::watch
