// aio_bench without a sweep: runs each mode several times on one session, and adds a row per run to
// the table.
#pragma once

#include <cstdio>
#include <vector>

#include "bench/aio_options.h"
#include "bench/aio_report.h"
#include "tools/support/interrupt.h"
#include "tools/support/progress_line.h"

namespace sluice::bench {

// Runs what the options say. An interrupt ends it early, with the measurements so far in `results`.
// With --verify the file must hold the pattern of options.seed.
Status measure(AioSession& session, const AioOptions& options, const tools::Interrupt& interrupt,
               tools::ProgressLine& progress, std::FILE* table, std::vector<ModeRuns>& results);

}  // namespace sluice::bench
