// ProgressLine: how far a long transfer has come, on a terminal (aio/terminal_line.h).
//
//   write, run 2 of 3  [=========>          ]  47%  3.12 GB/s  0:07 left
#pragma once

#include <string_view>

#include "aio/terminal_line.h"

namespace sluice::tools {

class ProgressLine {
 public:
  struct State {
    double fraction = 0;      // of what `what` names
    double gb_per_s = 0;      // now; 0 shows none
    double seconds_left = 0;  // of the whole program, as far as known
  };

  // At most ten updates a second reach the terminal.
  void update(std::string_view what, const State& state);
  // Clears the line; call it before printing anything else.
  void clear() { line_.clear(); }

 private:
  TerminalLine line_;
};

}  // namespace sluice::tools
