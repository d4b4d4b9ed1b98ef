#include "offload/adamw/adamw.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <string>

#include "aio/check.h"
#include "aio/units.h"
#include "offload/adamw/adamw_kernels.h"
#include "offload/adamw/fp_environment.h"

namespace sluice::offload {
namespace {

// Pieces begin on page boundaries of page-aligned fp32 arrays (on half pages of 16-bit ones).
constexpr std::uint64_t kPieceElements = 1024;
// With fewer elements the caller finishes sooner than it could pass work to other threads.
constexpr std::uint64_t kElementsWorthThreads = 32 * 1024;

AdamwKernel* kernel_for(Isa isa) {
  switch (isa) {
    case Isa::kAvx512:
      return adamw_avx512;
    case Isa::kAvx2:
      return adamw_avx2;
    case Isa::kScalar:
      break;
  }
  return adamw_scalar;
}

void run_kernel(AdamwKernel* kernel, const AdamwScalars& scalars, const AdamwArrays& arrays,
                std::uint64_t begin, std::uint64_t end) {
  const DefaultFpEnvironment fp_environment;
  kernel(scalars, arrays, begin, end);
}

template <typename T>
bool usable(const T* array, std::size_t alignment = alignof(T)) {
  return array != nullptr && reinterpret_cast<std::uintptr_t>(array) % alignment == 0;
}

void check_arrays(const AdamwArrays& arrays) {
  const auto* grad = static_cast<const std::uint8_t*>(arrays.grad);
  SLUICE_CHECK(usable(grad, element_bytes(arrays.grad_type)),
               "a gradient array, aligned to its type");
  const bool wide = arrays.moment_type == ElementType::kFp32;
  SLUICE_CHECK(wide || arrays.moment_type == ElementType::kBf16, "moments of fp32 or bf16");
  SLUICE_CHECK(
      wide ? usable(arrays.m) && usable(arrays.v) : usable(arrays.m16) && usable(arrays.v16),
      "aligned moments");
  const bool split = arrays.param_form == ParamForm::kSplit;
  SLUICE_CHECK(split ? usable(arrays.lo) : usable(arrays.master), "an aligned master");
  SLUICE_CHECK(arrays.param_form == ParamForm::kFp32 || usable(arrays.param16),
               "an aligned 16-bit parameter");
}

Error out_of_range(const char* name, double value, const char* allowed) {
  return Error(ErrorCode::kInvalidArgument, std::string("AdamW: ") + name + " is " +
                                                std::to_string(value) + "; it must be " + allowed);
}

bool finite_and_not_negative(double value) { return std::isfinite(value) && value >= 0; }

Status check_options(const AdamwOptions& o) {
  constexpr const char* kNotNegative = "a finite number, 0 or more";
  if (!finite_and_not_negative(o.learning_rate))
    return out_of_range("learning_rate", o.learning_rate, kNotNegative);
  if (!(o.beta1 >= 0 && o.beta1 < 1)) return out_of_range("beta1", o.beta1, "in [0, 1)");
  if (!(o.beta2 >= 0 && o.beta2 < 1)) return out_of_range("beta2", o.beta2, "in [0, 1)");
  if (!finite_and_not_negative(o.eps)) return out_of_range("eps", o.eps, kNotNegative);
  if (!finite_and_not_negative(o.weight_decay))
    return out_of_range("weight_decay", o.weight_decay, kNotNegative);
  if (o.step < 1) return out_of_range("step", static_cast<double>(o.step), "1 or more");
  if (!(std::isfinite(o.loss_scale) && o.loss_scale > 0))
    return out_of_range("loss_scale", o.loss_scale, "a finite number above 0");
  if (!finite_and_not_negative(o.grad_norm))
    return out_of_range("grad_norm", o.grad_norm, kNotNegative);
  if (!finite_and_not_negative(o.clip_norm))
    return out_of_range("clip_norm", o.clip_norm, kNotNegative);
  if (!finite_and_not_negative(o.clip_value))
    return out_of_range("clip_value", o.clip_value, kNotNegative);
  return {};
}

}  // namespace

Result<AdamwScalars> make_adamw_scalars(const AdamwOptions& o) {
  SLUICE_RETURN_IF_ERROR(check_options(o));
  const auto t = static_cast<double>(o.step);
  const double c1 = o.bias_correction ? 1 - std::pow(o.beta1, t) : 1;
  const double c2 = o.bias_correction ? 1 - std::pow(o.beta2, t) : 1;
  const double shrink = o.clip_norm > 0 ? std::max(1.0, (o.grad_norm + 1e-6) / o.clip_norm) : 1.0;
  const auto rounded = [](double value) { return static_cast<float>(value); };
  constexpr float kNoLimit = std::numeric_limits<float>::infinity();
  return AdamwScalars{.grad_scale = rounded(1 / (o.loss_scale * shrink)),
                      .one_minus_beta1 = rounded(1 - o.beta1),
                      .one_minus_beta2 = rounded(1 - o.beta2),
                      .inv_sqrt_c2 = rounded(1 / std::sqrt(c2)),
                      .eps = rounded(o.eps),
                      .step_size = rounded(o.learning_rate / c1),
                      .decay = rounded(o.adam_w_mode ? o.learning_rate * o.weight_decay : 0),
                      .l2 = rounded(o.adam_w_mode ? 0 : o.weight_decay),
                      .grad_limit = o.clip_value > 0 ? rounded(o.clip_value) : kNoLimit,
                      .use_l2 = !o.adam_w_mode && o.weight_decay > 0};
}

void adamw_step(aio::Executor& executor, Isa isa, const AdamwScalars& scalars,
                const AdamwArrays& arrays, std::uint64_t elements) {
  if (elements == 0) return;
  check_arrays(arrays);
  AdamwKernel* const kernel = kernel_for(isa);
  const auto pieces = elements < kElementsWorthThreads ? 1 : executor.threads();
  const std::uint64_t piece_elements =
      align_up((elements - 1) / static_cast<std::uint64_t>(pieces) + 1, kPieceElements);
  const auto work = [&](int piece) {
    const std::uint64_t begin = static_cast<std::uint64_t>(piece) * piece_elements;
    if (begin >= elements) return;
    run_kernel(kernel, scalars, arrays, begin, std::min(elements, begin + piece_elements));
  };
  if (pieces == 1) return work(0);
  executor.run(pieces, std::cref(work));  // by reference, so that std::function allocates nothing
}

void adamw_range(Isa isa, const AdamwScalars& scalars, const AdamwArrays& arrays,
                 std::uint64_t begin, std::uint64_t end) {
  if (begin == end) return;
  check_arrays(arrays);
  run_kernel(kernel_for(isa), scalars, arrays, begin, end);
}

}  // namespace sluice::offload
