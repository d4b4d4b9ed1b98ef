// ProgressLine: one line on a terminal that is rewritten in place, and nothing anywhere else.
//
//   write, run 2 of 3  [=========>          ]  47%  3.12 GB/s  0:07 left
#pragma once

#include <chrono>
#include <string_view>

namespace sluice::bench {

class ProgressLine {
 public:
  struct State {
    double fraction = 0;      // of what `what` names
    double gb_per_s = 0;      // now; 0 shows none
    double seconds_left = 0;  // of the whole program, as far as known
  };

  // Shows itself when standard error is a terminal.
  ProgressLine();
  ~ProgressLine() { clear(); }
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  // At most ten times a second reach the terminal.
  void update(std::string_view what, const State& state);
  // Empties the line; call it before printing anything else.
  void clear();

 private:
  const bool enabled_;
  bool shown_ = false;
  std::chrono::steady_clock::time_point last_{};
};

}  // namespace sluice::bench
