// aio_bench without a sweep: each mode several times on one session, row by row into the table.
#pragma once

#include <cstdio>
#include <vector>

#include "bench/aio_options.h"
#include "bench/aio_report.h"
#include "tools/support/interrupt.h"
#include "tools/support/progress_line.h"

namespace sluice::bench {

// Runs what the options say; an interrupt ends it early, with what was measured so far in
// `results`. With --verify the file must hold the pattern of options.seed.
Status measure(AioSession& session, const AioOptions& options, const tools::Interrupt& interrupt,
               tools::ProgressLine& progress, std::FILE* table, std::vector<ModeRuns>& results);

}  // namespace sluice::bench
