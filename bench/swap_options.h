// The options of swap_bench as checked values. Every error is one sentence that names the option,
// its value and what is allowed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "aio/result.h"
#include "bench/aio_options.h"
#include "offload/adamw/adamw_arrays.h"
#include "offload/adamw/isa.h"
#include "swap/swap_pipeline.h"

namespace sluice::bench {

struct SwapBenchOptions {
  // Paths, stripes, backend, block size, queue depth (of all queues together) and --json. Its size
  // is the size of the reference's file.
  AioOptions io;
  std::uint64_t elements = 0;
  offload::StateForm form;
  std::uint64_t record_elements = 0;
  int buffers = 0;
  std::uint64_t pinned_budget_bytes = 0;  // 0: --buffers was given
  std::vector<swap::SwapPipeline::Order> orders;
  int burst_records = 0;
  int queues = 0;  // 1: shared by reads and writes
  int threads = 0;
  offload::Isa isa = offload::Isa::kScalar;
  bool adamw = false;  // otherwise nothing is computed
  int steps = 0;       // per order; 0: until `seconds` have passed
  double seconds = 0;
  bool reference = false;

  std::uint64_t records() const { return (elements - 1) / record_elements + 1; }
  std::uint64_t record_elements_of(std::uint64_t record) const;
  std::uint64_t image_bytes() const;  // a whole record, on disk and in memory
  std::uint64_t pinned_bytes() const { return image_bytes() * static_cast<std::uint64_t>(buffers); }
  std::uint64_t state_bytes() const;  // on all paths
};

std::string_view to_string(swap::SwapPipeline::Order order);

// nullopt: --help or --version was requested and printed.
Result<std::optional<SwapBenchOptions>> parse_swap_command_line(int argc, const char* const* argv);

}  // namespace sluice::bench
