// Measures a kernel in alternation with passes that only move bytes.
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

// The passes that the kernel is measured against: copies and, if the kernel's proportion of reads
// to writes differs, passes with that proportion.
std::vector<PlainPass> yardsticks_of(const AdamBenchOptions& options);

struct AdamRun {
  double kernel_elements_per_s = 0;
  std::vector<double> plain_gb_per_s;  // one value per yardstick
};

// Takes options.runs measurements, after one pass of each kind to warm up. kCancelled: interrupted.
Result<std::vector<AdamRun>> measure_kernel(const AdamBenchOptions& options,
                                            KernelWorkload& workload, aio::Executor& executor,
                                            const tools::Interrupt& interrupt,
                                            tools::ProgressLine& progress);

}  // namespace sluice::bench
