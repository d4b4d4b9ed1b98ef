// AdamWorkload: the arrays of one AdamW problem in memory, and two buffers of the same size for the
// copy it is measured against. Filled with values as training has them.
#pragma once

#include <cstdint>
#include <vector>

#include "aio/executor.h"
#include "aio/page_memory.h"
#include "aio/result.h"
#include "bench/adam_options.h"
#include "bench/copy_bandwidth.h"

namespace sluice::bench {

class AdamWorkload {
 public:
  static Result<AdamWorkload> create(const AdamBenchOptions& options, aio::Executor& executor);

  // Each repeats until `seconds` have passed, and returns its speed.
  double adam_params_per_s(double seconds);
  double copy_gb_per_s(CopyKind kind, double seconds);

  aio::PageKind page_kind() const { return memory_[0].page_kind(); }

 private:
  AdamWorkload(const AdamBenchOptions& options, aio::Executor& executor)
      : options_(&options), executor_(&executor) {}
  Result<std::byte*> map(std::uint64_t bytes);
  void fill();

  const AdamBenchOptions* options_;
  aio::Executor* executor_;
  std::vector<aio::PageMemory> memory_;
  offload::AdamwArrays arrays_;
  std::byte* copy_from_ = nullptr;
  std::byte* copy_to_ = nullptr;
  std::uint64_t copy_bytes_ = 0;  // of one of the two
};

}  // namespace sluice::bench
