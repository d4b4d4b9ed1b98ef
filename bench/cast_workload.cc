#include "bench/cast_workload.h"

namespace sluice::bench {

using offload::GradType;

CastWorkload::CastWorkload(const AdamBenchOptions& options, aio::Executor& executor)
    : KernelWorkload(executor, options.stagger_lines), isa_(options.isa), sum_(options.elements) {
  cast_.to = options.grad;
  cast_.elements = options.elements;
}

Result<std::unique_ptr<KernelWorkload>> CastWorkload::create(const AdamBenchOptions& options,
                                                             aio::Executor& executor) {
  std::unique_ptr<CastWorkload> workload(new CastWorkload(options, executor));
  SLUICE_ASSIGN_OR_RETURN(std::byte* const grad_bytes, workload->map(options.elements * 4));
  auto* const grad = reinterpret_cast<float*>(grad_bytes);
  workload->cast_.grad = grad;
  if (options.grad != GradType::kFp32) {
    SLUICE_ASSIGN_OR_RETURN(std::byte* const out, workload->map(options.elements * 2));
    workload->cast_.out = reinterpret_cast<std::uint16_t*>(out);
  }
  workload->fill_all(options.elements, [grad](std::uint64_t begin, std::uint64_t end) {
    for (std::uint64_t i = begin; i < end; ++i) grad[i] = 1e-3F * noise(i);
  });
  return std::unique_ptr<KernelWorkload>(std::move(workload));
}

void CastWorkload::pass() {
  sum_.reset(0);
  offload::cast_and_sum(executor(), isa_, cast_, sum_);
}

}  // namespace sluice::bench
