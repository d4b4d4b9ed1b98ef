// AdamWorkload: one AdamW problem in memory. A pass is one step over all parameters.
#pragma once

#include <memory>

#include "bench/adam_options.h"
#include "bench/kernel_workload.h"
#include "offload/adamw/adamw.h"

namespace sluice::bench {

class AdamWorkload final : public KernelWorkload {
 public:
  static Result<std::unique_ptr<KernelWorkload>> create(const AdamBenchOptions& options,
                                                        aio::Executor& executor);
  void pass() override;

 private:
  AdamWorkload(const AdamBenchOptions& options, aio::Executor& executor);
  Status map_arrays();
  void fill(std::uint64_t begin, std::uint64_t end);

  const std::uint64_t elements_;
  const offload::Isa isa_;
  const offload::AdamwScalars scalars_;
  offload::AdamwArrays arrays_;
};

}  // namespace sluice::bench
