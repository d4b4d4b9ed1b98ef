// The lines of an untrusted text file: it may be torn, huge, or no text at all.
//
// Memory: one line, at most kMostLineBytes.
// Errors: name the file. kInvalidArgument if it is not a regular file, since reading a pipe could
//         block. The same if it is a link that leads out of its folder, since a run may belong to
//         another user.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

#include "aio/result.h"

namespace sluice::report {

inline constexpr std::size_t kMostLineBytes = std::size_t{4} << 20;

struct TextLine {
  std::string_view text;  // without its end
  bool ended = true;      // by a newline rather than by the end of the file
};

// Splits text that arrives in pieces into lines, and calls visit() for each line that is not empty.
class LineSplitter {
 public:
  using Visit = std::function<void(const TextLine&)>;
  explicit LineSplitter(Visit visit) : visit_(std::move(visit)) {}

  void feed(std::string_view text);
  // Ends the current file: a line that was begun counts, though its end is missing. Another file
  // may follow.
  void finish();

  bool has_begun() const { return !begun_.empty() || passes_over_; }
  std::int64_t too_long() const { return too_long_; }  // lines skipped: longer than kMostLineBytes

 private:
  void end_line(std::string_view rest, bool ended);

  Visit visit_;
  std::string begun_;  // a line whose end has not been seen
  std::int64_t too_long_ = 0;
  bool passes_over_ = false;
};

// Visits all lines of a file. Returns how many were skipped.
Result<std::int64_t> read_lines(const std::string& path,
                                const std::function<void(const TextLine&)>& visit);

}  // namespace sluice::report
