// SwapReport: what swap_bench shows of its steps, as tables, sentences and JSON.
//
// Threads: one.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "aio/machine_info.h"
#include "aio/pinned_pool.h"
#include "bench/aio_workload.h"
#include "bench/swap_options.h"
#include "bench/swap_workload.h"

namespace sluice::bench {

// One step of each order and a run of the reference, close together in time.
struct SwapRound {
  std::vector<SwapStep> steps;         // by SwapBenchOptions::orders
  std::optional<RunResult> reference;  // aio_bench's mixed mode
};

struct SwapReport {
  SwapBenchOptions options;
  std::vector<SwapRound> rounds;  // only complete rounds
  ChecksumCost checksums;
  aio::PinnedPool::Usage pinned;
  std::string backend;
  bool interrupted = false;

  std::string shape_text() const;
  static std::string table_heading();
  static std::string step_row(const SwapStep& step, const std::string& label,
                              const std::optional<RunResult>& reference);
  static std::string reference_row(const RunResult& run, const std::string& label);
  // Medians and the bottleneck; rounds must not be empty.
  std::string summary() const;
  std::string json(const aio::MachineInfo& machine, const std::string& command) const;

 private:
  struct Medians {
    double read_gb_per_s = 0;
    double write_gb_per_s = 0;
    double seconds = 0;
    std::optional<double> share;  // relative to the reference in the same round
    double wait_read = 0;         // this and the next two: shares of the step
    double compute = 0;
    double wait_write = 0;
  };
  Medians medians(std::size_t order) const;
  std::size_t better_order() const;
  double checksum_part(const Medians& step) const;
  std::string bottleneck_text(std::size_t order) const;
};

}  // namespace sluice::bench
