// Numbers, counts, lists and words of a shell as text, for sentences, tables and files.
#pragma once

#include <concepts>
#include <span>
#include <string>
#include <string_view>

namespace sluice {

// Any two doubles differ in so many significant digits.
inline constexpr int kAllDigits = 17;

// As "%.*g" of printf has it: 0.5 -> "0.5", 1e-8 -> "1e-08", 1234567 -> "1.23457e+06".
std::string significant(double value, int digits = 6);
// 0.253 -> "25.3%"
std::string percent(double share, int decimals = 1);
// "1 token", "2 tokens"
template <std::integral Count>
std::string counted(Count count, std::string_view noun) {
  return std::to_string(count).append(" ").append(noun).append(count == 1 ? "" : "s");
}
std::string joined(std::span<const std::string> parts, std::string_view between = " ");

// As a shell needs it: as it is, or between single quotes.
std::string shell_word(std::string_view word);

// On one line, whatever bytes its texts have.
template <typename Json>
std::string json_line(const Json& json) {
  return json.dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

}  // namespace sluice
