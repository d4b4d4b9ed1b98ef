// Progress of a long operation: a line on a terminal, otherwise an occasional line in the log.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "aio/clock.h"
#include "aio/log.h"
#include "aio/terminal_line.h"
#include "tools/session/share_log.h"

namespace sluice::tools {

// Returns a void(std::uint64_t done, std::uint64_t total) that shows "what: 42%" now and then.
// `line` and `has_begun` must outlive it; it sets `has_begun` to true.
inline auto show_share(TerminalLine& line, const std::string& what, bool* has_begun = nullptr) {
  return [&line, what, has_begun, log = std::make_shared<ShareLog>(what)](std::uint64_t done,
                                                                          std::uint64_t total) {
    if (has_begun != nullptr) *has_begun = true;
    if (line.is_terminal()) {
      if (line.due())
        line.show(what + ": " + std::to_string(total == 0 ? 100 : done * 100 / total) + "%");
    } else if (const auto text = log->line_at(SteadyClock().now_ns(), done, total)) {
      log::info(*text);
    }
  };
}

}  // namespace sluice::tools
