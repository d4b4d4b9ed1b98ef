// Progress of what takes a while, on a terminal.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "aio/terminal_line.h"

namespace sluice::tools {

// "what: 42%", now and then. The line must outlive it.
inline std::function<void(std::uint64_t done, std::uint64_t total)> show_share(
    TerminalLine& line, const std::string& what) {
  return [&line, what](std::uint64_t done, std::uint64_t total) {
    if (line.due())
      line.show(what + ": " + std::to_string(total == 0 ? 100 : done * 100 / total) + "%");
  };
}

}  // namespace sluice::tools
