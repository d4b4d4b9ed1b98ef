// Progress of something that takes a while, on a terminal.
#pragma once

#include <cstdint>
#include <string>

#include "aio/terminal_line.h"

namespace sluice::tools {

// A void(std::uint64_t done, std::uint64_t total) that shows "what: 42%", now and then. The line
// must outlive it, and so must `has_begun`, which becomes true.
inline auto show_share(TerminalLine& line, const std::string& what, bool* has_begun = nullptr) {
  return [&line, what, has_begun](std::uint64_t done, std::uint64_t total) {
    if (has_begun != nullptr) *has_begun = true;
    if (line.due())
      line.show(what + ": " + std::to_string(total == 0 ? 100 : done * 100 / total) + "%");
  };
}

}  // namespace sluice::tools
