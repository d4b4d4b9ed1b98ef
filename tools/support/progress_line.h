// ProgressLine: the progress of a long transfer, on a terminal (aio/terminal_line.h).
//
//   write, run 2 of 3  [=========>          ]  47%  3.12 GB/s  0:07 left
#pragma once

#include <string_view>

#include "aio/terminal_line.h"

namespace sluice::tools {

class ProgressLine {
 public:
  struct State {
    double fraction = 0;      // share done of `what`
    double gb_per_s = 0;      // current speed; 0: not shown
    double seconds_left = 0;  // estimate for the whole program
  };

  // At most ten updates a second reach the terminal.
  void update(std::string_view what, const State& state);
  // Clears the line; call it before printing other text.
  void clear() { line_.clear(); }

 private:
  TerminalLine line_;
};

}  // namespace sluice::tools
