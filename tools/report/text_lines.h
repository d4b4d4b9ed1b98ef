// The lines of a text file that anyone may have written: torn, huge, or no text at all.
//
// Memory: one line, at most kMostLineBytes.
// Errors: name the file. What is not a regular file is kInvalidArgument: a pipe would wait.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "aio/result.h"

namespace sluice::report {

inline constexpr std::size_t kMostLineBytes = std::size_t{4} << 20;

struct TextLine {
  std::int64_t number = 0;  // the first is 1
  std::string_view text;    // without its end
  bool ended = true;        // by a newline, and not by the end of the file
};

// Calls visit() for each line that is not empty. Returns how many were passed over because they
// were longer than kMostLineBytes.
Result<std::int64_t> read_lines(const std::string& path,
                                const std::function<void(const TextLine&)>& visit);

}  // namespace sluice::report
