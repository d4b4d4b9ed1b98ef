#include "aio/units.h"

#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <iterator>
#include <limits>
#include <system_error>

namespace sluice {
namespace {

constexpr std::array<std::pair<char, std::uint64_t>, 4> kSuffixes = {
    {{'K', kKiB}, {'M', kMiB}, {'G', kGiB}, {'T', kTiB}}};

Error bad_size(std::string_view text, std::string_view why) {
  return Error(ErrorCode::kInvalidArgument,
               "\"" + std::string(text) + "\" is not a size: " + std::string(why) +
                   " (examples: 4096, 256K, 1M, 1.5G; K, M, G, T are powers of 1024)");
}

}  // namespace

Result<std::uint64_t> parse_bytes(std::string_view text) {
  if (text.empty()) return bad_size(text, "it is empty");
  std::size_t digits = 0;
  while (digits < text.size() &&
         ((text[digits] >= '0' && text[digits] <= '9') || text[digits] == '.')) {
    ++digits;
  }
  const std::string number(text.substr(0, digits));
  if (number.empty() || number == "." || number.find('.') != number.rfind('.')) {
    return bad_size(text, "it must begin with a number that is not negative");
  }
  std::uint64_t unit = 1;
  std::string_view suffix = text.substr(digits);
  if (!suffix.empty()) {
    const char letter = static_cast<char>(std::toupper(static_cast<unsigned char>(suffix[0])));
    for (const auto& [name, bytes] : kSuffixes) {
      if (letter == name) unit = bytes;
    }
    std::string rest;
    for (const char c : suffix.substr(unit == 1 ? 0 : 1)) {
      rest += static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
    }
    const bool known = rest.empty() || rest == "B" || (unit != 1 && rest == "IB");
    if (!known) return bad_size(text, "its unit is unknown");
  }
  // Whole numbers stay exact beyond 2^53; only numbers with a fraction are converted through a
  // double.
  constexpr auto kMax = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  if (number.find('.') == std::string::npos) {
    std::uint64_t value = 0;
    for (const char c : number) {
      const auto digit = static_cast<std::uint64_t>(c - '0');
      if (value > (kMax - digit) / 10) return bad_size(text, "it is too large");
      value = value * 10 + digit;
    }
    if (value > kMax / unit) return bad_size(text, "it is too large");
    return value * unit;
  }
  double value = 0;  // from_chars, because strtod takes its decimal point from the locale
  const auto read = std::from_chars(number.data(), number.data() + number.size(), value);
  const double bytes = value * static_cast<double>(unit);
  if (read.ec != std::errc() || bytes >= 0x1p63) return bad_size(text, "it is too large");
  if (unit == 1 && bytes != std::floor(bytes)) return bad_size(text, "bytes must be whole");
  return static_cast<std::uint64_t>(std::llround(bytes));
}

std::string format_bytes(std::uint64_t bytes) {
  for (auto it = kSuffixes.rbegin(); it != kSuffixes.rend(); ++it) {
    const auto [name, unit] = *it;
    if (bytes < unit) continue;
    if (bytes % unit == 0) return std::to_string(bytes / unit) + name;
    // A number that two decimals would round to 1024.00 is shown in the next unit.
    if (it != kSuffixes.rbegin() && bytes >= 1024 * unit - unit / 200) {
      return std::string("1.00") + std::prev(it)->first;
    }
    std::array<char, 32> text{};
    std::snprintf(text.data(), text.size(), "%.2f%c",
                  static_cast<double>(bytes) / static_cast<double>(unit), name);
    return text.data();
  }
  return std::to_string(bytes);
}

double gb_per_s(std::uint64_t bytes, std::int64_t elapsed_ns) {
  return elapsed_ns > 0 ? static_cast<double>(bytes) / static_cast<double>(elapsed_ns) : 0.0;
}

}  // namespace sluice
