#include "bench/adam_workload.h"

#include "offload/adamw/half.h"
#include "offload/adamw/moment_rounding.h"
#include "offload/adamw/split_master.h"

namespace sluice::bench {

using offload::ElementType;
using offload::GradType;
using offload::ParamForm;

AdamWorkload::AdamWorkload(const AdamBenchOptions& options, aio::Executor& executor)
    : KernelWorkload(executor, options.stagger_lines),
      elements_(options.elements),
      isa_(options.isa),
      scalars_(offload::make_adamw_scalars({.learning_rate = 1e-4,
                                            .weight_decay = 0.01,
                                            .step = 1000,
                                            .grad_norm = 2,
                                            .clip_norm = 1})
                   .value()) {
  arrays_.grad_type = options.grad;
  arrays_.param_form = options.form.param;
  arrays_.moment_type = options.form.moments;
  arrays_.moment_keys = offload::moment_keys({.run_seed = 1, .step = 1000}, 0);
}

Result<std::unique_ptr<KernelWorkload>> AdamWorkload::create(const AdamBenchOptions& options,
                                                             aio::Executor& executor) {
  std::unique_ptr<AdamWorkload> workload(new AdamWorkload(options, executor));
  SLUICE_RETURN_IF_ERROR(workload->map_arrays());
  workload->fill_all(options.elements,
                     [&](std::uint64_t begin, std::uint64_t end) { workload->fill(begin, end); });
  return std::unique_ptr<KernelWorkload>(std::move(workload));
}

Status AdamWorkload::map_arrays() {
  const auto map_array = [this](auto& array, std::uint64_t element_bytes) -> Status {
    SLUICE_ASSIGN_OR_RETURN(std::byte* const bytes, map(elements_ * element_bytes));
    array = reinterpret_cast<std::remove_reference_t<decltype(array)>>(bytes);
    return {};
  };
  SLUICE_RETURN_IF_ERROR(map_array(arrays_.grad, offload::element_bytes(arrays_.grad_type)));
  if (arrays_.param_form != ParamForm::kFp32) SLUICE_RETURN_IF_ERROR(map_array(arrays_.param16, 2));
  if (arrays_.param_form == ParamForm::kSplit)
    SLUICE_RETURN_IF_ERROR(map_array(arrays_.lo, 2));
  else
    SLUICE_RETURN_IF_ERROR(map_array(arrays_.master, 4));
  if (arrays_.moment_type == ElementType::kFp32) {
    SLUICE_RETURN_IF_ERROR(map_array(arrays_.m, 4));
    return map_array(arrays_.v, 4);
  }
  SLUICE_RETURN_IF_ERROR(map_array(arrays_.m16, 2));
  return map_array(arrays_.v16, 2);
}

void AdamWorkload::fill(std::uint64_t begin, std::uint64_t end) {
  // Only this program owns the memory; the contract's const is for kernels.
  void* const grad = const_cast<void*>(arrays_.grad);
  for (std::uint64_t i = begin; i < end; ++i) {
    const float gradient = 1e-3F * noise(i);
    if (arrays_.grad_type == GradType::kFp32) static_cast<float*>(grad)[i] = gradient;
    if (arrays_.grad_type == GradType::kBf16)
      static_cast<std::uint16_t*>(grad)[i] = offload::bf16_from_float(gradient);
    if (arrays_.grad_type == GradType::kFp16)
      static_cast<std::uint16_t*>(grad)[i] = offload::fp16_from_float(gradient);
    const float weight = 0.05F * noise(i + elements_);
    if (arrays_.param_form == ParamForm::kSplit) {
      const offload::SplitMaster halves = offload::split_master(weight);
      arrays_.param16[i] = halves.hi;
      arrays_.lo[i] = halves.lo;
    } else {
      arrays_.master[i] = weight;
    }
    const float m = 1e-4F * noise(i + 2 * elements_);
    const float v = 1e-6F * (1 + noise(i + 3 * elements_));
    if (arrays_.moment_type == ElementType::kFp32) {
      arrays_.m[i] = m;
      arrays_.v[i] = v;
    } else {
      arrays_.m16[i] = offload::bf16_from_float(m);
      arrays_.v16[i] = offload::bf16_from_float(v);
    }
  }
}

void AdamWorkload::pass() { offload::adamw_step(executor(), isa_, scalars_, arrays_, elements_); }

}  // namespace sluice::bench
