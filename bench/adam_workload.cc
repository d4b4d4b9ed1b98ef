#include "bench/adam_workload.h"

#include <algorithm>
#include <chrono>

#include "aio/units.h"
#include "offload/adamw.h"
#include "offload/half.h"
#include "offload/split_master.h"

namespace sluice::bench {
namespace {

using offload::GradType;
using offload::ParamForm;

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Passes a second: whole passes, at least one, until `seconds` are over.
template <typename Pass>
double passes_per_s(double seconds, const Pass& pass) {
  const double begin = seconds_now();
  for (int passes = 1;; ++passes) {
    pass();
    const double elapsed = seconds_now() - begin;
    if (elapsed >= seconds) return passes / elapsed;
  }
}

// In (-1, 1), different for neighbours.
float noise(std::uint64_t i) {
  const auto hash = static_cast<std::uint32_t>((i * 0x9e3779b97f4a7c15) >> 40);
  return static_cast<float>(static_cast<std::int32_t>(hash) - (1 << 23)) * 0x1p-23F;
}

}  // namespace

Result<std::byte*> AdamWorkload::map(std::uint64_t bytes) {
  SLUICE_ASSIGN_OR_RETURN(aio::PageMemory memory, aio::PageMemory::map(bytes, true, executor_));
  memory_.push_back(std::move(memory));
  return memory_.back().data();
}

Result<AdamWorkload> AdamWorkload::create(const AdamBenchOptions& options,
                                          aio::Executor& executor) {
  AdamWorkload workload(options, executor);
  offload::AdamwArrays& arrays = workload.arrays_;
  arrays.grad_type = options.grad;
  arrays.param_form = options.form;
  const std::uint64_t n = options.elements;
  const auto map = [&workload, n](auto& array, std::uint64_t element_bytes) -> Status {
    SLUICE_ASSIGN_OR_RETURN(std::byte* const bytes, workload.map(n * element_bytes));
    array = reinterpret_cast<std::remove_reference_t<decltype(array)>>(bytes);
    return {};
  };
  SLUICE_RETURN_IF_ERROR(map(arrays.grad, options.grad == GradType::kFp32 ? 4 : 2));
  if (options.form != ParamForm::kFp32) SLUICE_RETURN_IF_ERROR(map(arrays.param16, 2));
  if (options.form == ParamForm::kSplit)
    SLUICE_RETURN_IF_ERROR(map(arrays.lo, 2));
  else
    SLUICE_RETURN_IF_ERROR(map(arrays.master, 4));
  SLUICE_RETURN_IF_ERROR(map(arrays.m, 4));
  SLUICE_RETURN_IF_ERROR(map(arrays.v, 4));
  workload.copy_bytes_ = align_up(options.memory_bytes() / 2, 4 * kKiB);
  SLUICE_ASSIGN_OR_RETURN(workload.copy_from_, workload.map(workload.copy_bytes_));
  SLUICE_ASSIGN_OR_RETURN(workload.copy_to_, workload.map(workload.copy_bytes_));
  workload.fill();
  return workload;
}

void AdamWorkload::fill() {
  const int pieces = executor_->threads();
  const std::uint64_t n = options_->elements;
  const std::uint64_t piece_elements = n / static_cast<std::uint64_t>(pieces) + 1;
  executor_->run(pieces, [&](int piece) {
    const std::uint64_t begin = static_cast<std::uint64_t>(piece) * piece_elements;
    // The memory is this program's alone; the contract's const is for kernels.
    void* const grad = const_cast<void*>(arrays_.grad);
    for (std::uint64_t i = begin; i < std::min(n, begin + piece_elements); ++i) {
      const float gradient = 1e-3F * noise(i);
      if (options_->grad == GradType::kFp32) static_cast<float*>(grad)[i] = gradient;
      if (options_->grad == GradType::kBf16)
        static_cast<std::uint16_t*>(grad)[i] = offload::bf16_from_float(gradient);
      if (options_->grad == GradType::kFp16)
        static_cast<std::uint16_t*>(grad)[i] = offload::fp16_from_float(gradient);
      const float weight = 0.05F * noise(i + n);
      if (options_->form == ParamForm::kSplit) {
        const offload::SplitMaster halves = offload::split_master(weight);
        arrays_.param16[i] = halves.hi;
        arrays_.lo[i] = halves.lo;
      } else {
        arrays_.master[i] = weight;
      }
      arrays_.m[i] = 1e-4F * noise(i + 2 * n);
      arrays_.v[i] = 1e-6F * (1 + noise(i + 3 * n));
    }
  });
}

double AdamWorkload::adam_params_per_s(double seconds) {
  const auto scalars = offload::make_adamw_scalars(
      {.learning_rate = 1e-4, .weight_decay = 0.01, .step = 1000, .grad_norm = 2, .clip_norm = 1});
  return static_cast<double>(options_->elements) * passes_per_s(seconds, [&] {
           offload::adamw_step(*executor_, options_->isa, *scalars, arrays_, options_->elements);
         });
}

double AdamWorkload::copy_gb_per_s(CopyKind kind, double seconds) {
  return 2e-9 * static_cast<double>(copy_bytes_) * passes_per_s(seconds, [&] {
           copy_memory(*executor_, kind, copy_to_, copy_from_, copy_bytes_);
         });
}

}  // namespace sluice::bench
