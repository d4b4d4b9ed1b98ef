// Text from token files for a terminal or a pipe, with the trained parts marked.
//
// The text is untrusted, and shown by printable().
//
// Threads: any. Errors: none.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace sluice::tools {

struct TextSegment {
  std::string text;
  bool marked = false;
};

enum class Marks : bool {
  kBrackets,  // ⟦marked⟧; these brackets themselves are shown as \u27e6 and \u27e7
  kColour,
};
// Each line begins with "  ", so that none can be mistaken for a heading, and ends with a line
// feed. Empty text is one empty line.
std::string marked_lines(std::span<const TextSegment> segments, Marks marks);

}  // namespace sluice::tools
