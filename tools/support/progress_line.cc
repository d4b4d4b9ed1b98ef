#include "tools/support/progress_line.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>

namespace sluice::tools {
namespace {

constexpr int kBarWidth = 20;

}  // namespace

void ProgressLine::update(std::string_view what, const State& state) {
  if (!line_.due()) return;
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
  line_.show(std::string(what) + "  [" + bar + "]" + numbers);
}

}  // namespace sluice::tools
