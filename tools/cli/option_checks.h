// What the values of options are checked for, in one sentence each: "--steps: -5 is less than 1".
#pragma once

#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdint>
#include <string>

namespace sluice::tools {

// Of whole numbers.
inline CLI::Validator at_least(std::int64_t least) {
  return {[least](std::string& text) -> std::string {
            std::int64_t value = 0;
            if (!CLI::detail::lexical_cast(text, value))
              return "\"" + text + "\" is not a whole number";
            return value < least ? text + " is less than " + std::to_string(least) : "";
          },
          ""};
}

// Of numbers with a fraction; "nan" and "inf" are none.
inline CLI::Validator above_zero() {
  return {[](std::string& text) -> std::string {
            double value = 0;
            if (!CLI::detail::lexical_cast(text, value) || !std::isfinite(value))
              return "\"" + text + "\" is not a number";
            return value > 0 ? "" : text + " is not above 0";
          },
          ""};
}

}  // namespace sluice::tools
