// Parses option values: whole numbers within bounds, and the error sentence that names an option,
// its value and what is allowed.
#pragma once

#include <cstdint>
#include <string>

#include "aio/result.h"

namespace sluice::bench {

// "--size 0: give at least 4K": `allowed` follows the colon. kInvalidArgument.
Error wrong(const std::string& option, const std::string& value, const std::string& allowed);

// kInvalidArgument: not a whole number from `low` to `high`.
Result<std::uint64_t> whole_number(const std::string& option, const std::string& text,
                                   std::uint64_t low, std::uint64_t high);
// Like whole_number(); low must not be negative.
Result<int> small_number(const std::string& option, const std::string& text, int low, int high);

}  // namespace sluice::bench
