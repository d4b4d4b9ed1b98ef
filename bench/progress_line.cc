#include "bench/progress_line.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>

namespace sluice::bench {
namespace {

constexpr int kBarWidth = 20;

// A line that wraps cannot be rewritten in place.
std::size_t terminal_width() {
  winsize size{};
  if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col < 20) return 80;
  return size.ws_col;
}

}  // namespace

ProgressLine::ProgressLine() : enabled_(isatty(STDERR_FILENO) == 1) {}

void ProgressLine::update(std::string_view what, const State& state) {
  if (!enabled_) return;
  const auto now = std::chrono::steady_clock::now();
  if (shown_ && now - last_ < std::chrono::milliseconds(100)) return;
  last_ = now;

  const double fraction = std::clamp(state.fraction, 0.0, 1.0);
  std::string bar(kBarWidth, ' ');
  const auto filled = static_cast<std::size_t>(fraction * kBarWidth);
  std::fill_n(bar.begin(), filled, '=');
  if (filled < bar.size()) bar[filled] = '>';

  char numbers[96];
  int length = std::snprintf(numbers, sizeof numbers, "  %3.0f%%", std::floor(fraction * 100));
  if (state.gb_per_s > 0)
    length += std::snprintf(numbers + length, sizeof numbers - static_cast<std::size_t>(length),
                            "  %.2f GB/s", state.gb_per_s);
  const long left = std::lround(std::clamp(state.seconds_left, 0.0, 1e7));
  std::snprintf(numbers + length, sizeof numbers - static_cast<std::size_t>(length),
                "  %ld:%02ld left", left / 60, left % 60);

  std::string line = std::string(what) + "  [" + bar + "]" + numbers;
  line.resize(std::min(line.size(), terminal_width() - 1));
  std::fprintf(stderr, "\r\033[K%s", line.c_str());
  std::fflush(stderr);
  shown_ = true;
}

void ProgressLine::clear() {
  if (!shown_) return;
  std::fputs("\r\033[K", stderr);
  std::fflush(stderr);
  shown_ = false;
}

}  // namespace sluice::bench
