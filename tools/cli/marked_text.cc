#include "tools/cli/marked_text.h"

#include <algorithm>
#include <utility>

#include "aio/text.h"

namespace sluice::tools {
namespace {

constexpr const char* kIndent = "  ";
constexpr const char* kGreen = "\033[32m";
constexpr const char* kPlain = "\033[0m";
constexpr const char* kOpen = "\u27e6";
constexpr const char* kClose = "\u27e7";

}  // namespace

std::string marked_lines(std::span<const TextSegment> segments, Marks marks) {
  std::string made;
  bool fresh = true;  // at the beginning of a line
  const auto begin_line = [&] {
    if (std::exchange(fresh, false)) made += kIndent;
  };
  for (const TextSegment& segment : segments) {
    if (segment.text.empty()) continue;
    const bool in_brackets = segment.marked && marks == Marks::kBrackets;
    const bool in_colour = segment.marked && marks == Marks::kColour;
    if (in_brackets) begin_line();
    if (in_brackets) made += kOpen;
    bool painted = false;  // set anew on each line, as pagers show them
    for (const char letter : printable(segment.text)) {
      fresh = letter == '\n' ? true : (begin_line(), false);
      if (painted != (in_colour && !fresh)) made += painted ? kPlain : kGreen;
      painted = in_colour && !fresh;
      made += letter;
    }
    if (painted) made += kPlain;
    if (in_brackets) begin_line();
    if (in_brackets) made += kClose;
  }
  if (made.empty()) begin_line();
  return fresh ? made : made + "\n";
}

}  // namespace sluice::tools
