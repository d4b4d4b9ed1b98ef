// The lines of a text file that anyone may have written: torn, huge, or no text at all.
//
// Memory: one line, at most kMostLineBytes.
// Errors: name the file. What is not a regular file is kInvalidArgument: a pipe would wait. So is a
//         link that leads out of the file's folder: a run may be somebody else's.
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
  bool ended = true;      // by a newline, and not by the end of the file
};

// Cuts what comes in pieces into lines, and calls visit() for each that is not empty.
class LineSplitter {
 public:
  using Visit = std::function<void(const TextLine&)>;
  explicit LineSplitter(Visit visit) : visit_(std::move(visit)) {}

  void feed(std::string_view text);
  // What was begun is a line, whose end is missing; another file may follow.
  void finish();

  bool has_begun() const { return !begun_.empty() || passes_over_; }
  std::int64_t too_long() const { return too_long_; }  // lines passed over: above kMostLineBytes

 private:
  void end_line(std::string_view rest, bool ended);

  Visit visit_;
  std::string begun_;  // of a line whose end has not been seen
  std::int64_t too_long_ = 0;
  bool passes_over_ = false;
};

// All lines of a file. Returns how many were passed over.
Result<std::int64_t> read_lines(const std::string& path,
                                const std::function<void(const TextLine&)>& visit);

}  // namespace sluice::report
