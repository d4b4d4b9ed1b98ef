// Measures a kernel in alternation with passes that only move bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "aio/executor.h"
#include "aio/result.h"
#include "bench/adam_options.h"
#include "bench/kernel_workload.h"
#include "tools/support/interrupt.h"
#include "tools/support/progress_line.h"

namespace sluice::bench {

// Passes over memory that move bytes as fast as the machine can and compute nothing: the yardstick
// for a kernel with the same proportion of reads to writes.
enum class Traffic : std::uint8_t {
  kCopy,   // a byte written for each one read
  kHalve,  // a byte written for every two read
  kRead,   // nothing written
};
std::string_view to_string(Traffic traffic);

enum class Stores : std::uint8_t {
  kRegular,      // through the caches: a line is read before it is overwritten
  kNonTemporal,  // bypass the caches
};
std::string_view to_string(Stores stores);

struct PlainPass {
  Traffic traffic = Traffic::kCopy;
  Stores stores = Stores::kRegular;  // kRead has none

  // Bytes read and written in total, for `bytes` read.
  std::uint64_t moved_bytes(std::uint64_t bytes) const;
};

// Reads `bytes` at `from` and writes the pass's output at `to`. Each thread handles a contiguous
// range. Both are 64-byte aligned; bytes is a multiple of 128.
void run_plain_pass(aio::Executor& executor, PlainPass pass, std::byte* to, const std::byte* from,
                    std::uint64_t bytes);

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
