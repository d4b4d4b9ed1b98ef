// Progress of a long operation: a line on a terminal, otherwise an occasional line in the log.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "aio/clock.h"
#include "aio/log.h"
#include "aio/terminal_line.h"

namespace sluice::tools {

// ShareLog: log lines about the progress of a long operation: none in the first seconds, then few.
//
// Threads: one at a time. Errors: none.
class ShareLog {
 public:
  static constexpr std::int64_t kSecondNs = 1'000'000'000;
  static constexpr std::int64_t kFirstNs = 10 * kSecondNs;  // after the first call
  static constexpr std::int64_t kBetweenNs = 30 * kSecondNs;

  explicit ShareLog(std::string what) : what_(std::move(what)) {}

  // "reading the weights: 42% after 20 s, 28 s left"; nullopt if no line is due.
  std::optional<std::string> line_at(std::int64_t now_ns, std::uint64_t done, std::uint64_t total) {
    if (!begin_ns_) {
      begin_ns_ = now_ns;
      next_ns_ = now_ns + kFirstNs;
    }
    if (now_ns < next_ns_ || done == 0 || done >= total) return std::nullopt;
    next_ns_ = now_ns + kBetweenNs;
    constexpr double kPercent = 100;
    const double share = static_cast<double>(done) / static_cast<double>(total);
    const auto spent_s = static_cast<double>(now_ns - *begin_ns_) / double{kSecondNs};
    return what_ + ": " + whole(share * kPercent) + "% after " + whole(spent_s) + " s, " +
           whole(spent_s * (1 - share) / share) + " s left";
  }

 private:
  static std::string whole(double number) {
    return std::to_string(static_cast<std::int64_t>(number));
  }

  std::string what_;
  std::optional<std::int64_t> begin_ns_;
  std::int64_t next_ns_ = 0;
};

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
