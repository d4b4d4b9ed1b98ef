// Numbers, counts, lists and shell words as text, for sentences, tables and files.
#pragma once

#include <concepts>
#include <span>
#include <string>
#include <string_view>

namespace sluice {

// This many significant digits distinguish any two doubles.
inline constexpr int kAllDigits = 17;

// The format "%.*g" of printf: 0.5 -> "0.5", 1e-8 -> "1e-08", 1234567 -> "1.23457e+06".
std::string significant(double value, int digits = 6);
// 0.253 -> "25.3%"
std::string percent(double share, int decimals = 1);
// "1 token", "2 tokens"
template <std::integral Count>
std::string counted(Count count, std::string_view noun) {
  return std::to_string(count).append(" ").append(noun).append(count == 1 ? "" : "s");
}
std::string joined(std::span<const std::string> parts, std::string_view between = " ");

// Quoted for a shell if necessary, with single quotes.
std::string shell_word(std::string_view word);

// Untrusted text for a terminal. Characters that would move the cursor, change colours, hide text
// or reverse it are shown as \x1b, \u202e or \U000e0001, except those in `kept`, which are ASCII.
// Invalid UTF-8 is shown byte by byte.
std::string printable(std::string_view text, std::string_view kept = "\t\n");

// JSON on one line; bytes that are not UTF-8 are replaced.
template <typename Json>
std::string json_line(const Json& json) {
  return json.dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

}  // namespace sluice
