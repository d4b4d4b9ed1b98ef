#include "aio/terminal_line.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <string>

namespace sluice {
namespace {

constexpr auto kInterval = std::chrono::milliseconds(100);
constexpr std::size_t kUsualWidth = 80;
constexpr std::size_t kNarrowest = 20;  // smaller reported widths are taken for errors

std::atomic<bool> all_hidden = false;

// A line that wraps cannot be rewritten in place.
std::size_t terminal_width(int descriptor) {
  winsize size{};
  if (ioctl(descriptor, TIOCGWINSZ, &size) != 0 || size.ws_col < kNarrowest) return kUsualWidth;
  return size.ws_col;
}

}  // namespace

TerminalLine::TerminalLine(std::FILE* out)
    : out_(out), is_terminal_(!all_hidden && isatty(fileno(out)) == 1) {}

void TerminalLine::hide_all() { all_hidden = true; }

bool TerminalLine::due() const {
  return is_terminal_ && (!shown_ || std::chrono::steady_clock::now() - last_ >= kInterval);
}

void TerminalLine::show(std::string_view text) {
  if (!due()) return;
  last_ = std::chrono::steady_clock::now();
  const std::string line(text.substr(0, std::min(text.size(), terminal_width(fileno(out_)) - 1)));
  std::fprintf(out_, "\r\033[K%s", line.c_str());
  std::fflush(out_);
  shown_ = true;
}

void TerminalLine::clear() {
  if (!shown_) return;
  std::fputs("\r\033[K", out_);
  std::fflush(out_);
  shown_ = false;
}

}  // namespace sluice
