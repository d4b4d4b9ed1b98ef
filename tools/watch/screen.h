// The screen of `sluice watch`: a RunView laid out for a terminal of any size.
//
// Threads: pure functions.
#pragma once

#include <cstdint>
#include <string>

#include "tools/report/step_series.h"
#include "tools/watch/frame.h"
#include "tools/watch/run_view.h"

namespace sluice::watch {

enum class Panel : std::uint8_t { kOverview, kLearning, kSpeed, kMemory, kEvents };
inline constexpr int kPanels = 5;

struct ScreenOptions {
  Panel panel = Panel::kOverview;
  int zoom = 0;      // the last 1 / 2^zoom of the steps
  bool log = false;  // log scale for losses
  bool help = false;
  bool paused = false;
  bool unicode = true;
  int scroll = 0;  // how far the events are scrolled, from the newest
  int run = 0;
  int runs = 1;
};

inline constexpr int kMostZoom = 10;

Frame draw_screen(const RunView& view, const report::StepSeries& series, int rows, int columns,
                  const ScreenOptions& options);

}  // namespace sluice::watch
