// Measures a kernel, and beside it passes that only move bytes, in alternation.
#pragma once

#include <memory>
#include <vector>

#include "aio/executor.h"
#include "aio/result.h"
#include "bench/adam_options.h"
#include "bench/kernel_workload.h"
#include "bench/plain_pass.h"
#include "tools/support/interrupt.h"
#include "tools/support/progress_line.h"

namespace sluice::bench {

// What the kernel is measured against: copies, and passes with its own proportion of reads to
// writes where that differs.
std::vector<PlainPass> yardsticks_of(const AdamBenchOptions& options);

struct AdamRun {
  double kernel_elements_per_s = 0;
  std::vector<double> plain_gb_per_s;  // of each yardstick
};

// options.runs of them, after one pass of each kind to warm up. kCancelled: interrupted.
Result<std::vector<AdamRun>> measure_kernel(const AdamBenchOptions& options,
                                            KernelWorkload& workload, aio::Executor& executor,
                                            const tools::Interrupt& interrupt,
                                            tools::ProgressLine& progress);

}  // namespace sluice::bench
