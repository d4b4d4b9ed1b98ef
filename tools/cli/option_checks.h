// Checks of option values. Each fails with one sentence: "--steps: -5 is less than 1".
#pragma once

#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>

namespace sluice::tools {

// For whole numbers.
inline CLI::Validator at_least(std::int64_t least) {
  return {[least](std::string& text) -> std::string {
            std::int64_t value = 0;
            if (!CLI::detail::lexical_cast(text, value))
              return "\"" + text + "\" is not a whole number";
            // CLI11 turns larger numbers into this one.
            if (value == std::numeric_limits<std::int64_t>::max()) return text + " is too large";
            return value < least ? text + " is less than " + std::to_string(least) : "";
          },
          ""};
}

inline CLI::Validator not_empty() {
  return {[](std::string& text) -> std::string { return text.empty() ? "it is empty" : ""; }, ""};
}

// For numbers with a fraction; "nan" and "inf" are not numbers.
inline CLI::Validator above_zero() {
  return {[](std::string& text) -> std::string {
            double value = 0;
            if (!CLI::detail::lexical_cast(text, value) || !std::isfinite(value))
              return "\"" + text + "\" is not a number";
            return value > 0 ? "" : text + " is not above 0";
          },
          ""};
}

// For numbers with a fraction; both ends are allowed.
inline CLI::Validator between(double least, double most) {
  return {[least, most](std::string& text) -> std::string {
            double value = 0;
            if (!CLI::detail::lexical_cast(text, value) || !std::isfinite(value))
              return "\"" + text + "\" is not a number";
            if (value >= least && value <= most) return "";
            return text + " is not between " + CLI::detail::to_string(least) + " and " +
                   CLI::detail::to_string(most);
          },
          ""};
}

}  // namespace sluice::tools
