// The sweep: which block size, depth and thread count suit this drive best.
//
// Every point of the grid is tried several times (--runs), all points once in random order before
// any is tried again, since a shared disk drifts. Points within 2% of the fastest count as equal;
// the best is the one among them with the least memory in flight.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bench/aio_options.h"
#include "bench/aio_report.h"
#include "tools/support/interrupt.h"
#include "tools/support/progress_line.h"

namespace sluice::bench {

// The shapes to try: those that fit the file, the memory and the queue.
std::vector<AioSession::Options> sweep_grid(const AioOptions& options, int cores,
                                            std::uint64_t ram_bytes);

// At least one of the points has a mean.
const SweepPoint& best_point(const std::vector<SweepPoint>& points);

// One table per thread count, with block sizes as rows and depths as columns, and the best in
// brackets; "-" where nothing completed or was tried.
std::string sweep_tables(const std::vector<SweepPoint>& points, const SweepPoint& best);

// Points are in the order of the grid; an interrupt leaves some untried. An error if nothing
// completed at any point; kCancelled if an interrupt was the reason.
Result<std::vector<SweepPoint>> run_sweep(const BenchTarget& target, const AioOptions& options,
                                          const std::vector<AioSession::Options>& grid,
                                          const tools::Interrupt& interrupt,
                                          tools::ProgressLine& progress);

}  // namespace sluice::bench
