// A RunView in words, for the screen and for output without a screen.
//
// Threads: pure functions.
#pragma once

#include <string>

#include "tools/watch/run_view.h"

namespace sluice::watch {

// Why a run is in its phase, if that is not obvious; else empty. Unescaped, as in the run's files.
std::string phase_sentence(const RunView& view);

std::string steps_text(const RunView& view);  // "120/2000 (6%)"

// The largest part of a step, measured and planned: "compute 91%, plan NVMe read".
std::string holds_the_step(const RunView& view);

// How busy the GPUs are, if known: "92%, throttled 25%, 640 W"; else empty.
std::string gpu_text(const RunView& view);

// "demo: training, step 120 of 2000, loss 3.214, ...", without a line feed. printable().
std::string plain_line(const RunView& view);

}  // namespace sluice::watch
