// CastWorkload: one fp32 gradient in memory. A pass casts all of it and adds up its squares.
#pragma once

#include <memory>

#include "bench/adam_options.h"
#include "bench/kernel_workload.h"
#include "offload/adamw/grad_stats.h"

namespace sluice::bench {

class CastWorkload final : public KernelWorkload {
 public:
  static Result<std::unique_ptr<KernelWorkload>> create(const AdamBenchOptions& options,
                                                        aio::Executor& executor);
  void pass() override;

 private:
  CastWorkload(const AdamBenchOptions& options, aio::Executor& executor);

  const offload::Isa isa_;
  offload::GradCast cast_;
  offload::SquareSum sum_;
};

}  // namespace sluice::bench
