#include "aio/text.h"

#include <algorithm>
#include <array>
#include <cstdio>

namespace sluice {

std::string significant(double value, int digits) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.*g", digits, value);
  return text.data();
}

std::string percent(double share, int decimals) {
  std::array<char, 512> text{};  // the largest double has 309 digits
  std::snprintf(text.data(), text.size(), "%.*f%%", decimals, 100 * share);
  return text.data();
}

std::string joined(std::span<const std::string> parts, std::string_view between) {
  std::string text;
  for (const std::string& part : parts) {
    if (!text.empty()) text += between;
    text += part;
  }
  return text;
}

std::string shell_word(std::string_view word) {
  const auto plain = [](char c) {
    constexpr std::string_view kMarks = "_@%+=:,./-";
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           kMarks.find(c) != std::string_view::npos;
  };
  if (!word.empty() && std::all_of(word.begin(), word.end(), plain)) return std::string(word);
  std::string quoted = "'";
  for (const char c : word) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

}  // namespace sluice
