// What an AdamW kernel is given, on the CPU and on the GPU alike: scalars and arrays, as plain data
// (CUDA code includes this file).
#pragma once

#include <cstdint>

#include "offload/element_types.h"

namespace sluice::offload {

// Computed once a step by make_adamw_scalars(), in double, each then rounded to float.
struct AdamwScalars {
  float grad_scale;       // s: undoes the loss scale and clips
  float one_minus_beta1;  // 1 - b1
  float one_minus_beta2;  // 1 - b2
  float inv_sqrt_c2;      // 1 / sqrt(c2), c2 = 1 - b2^t
  float eps;
  float step_size;   // lr / c1, c1 = 1 - b1^t
  float decay;       // lr * wd; 0 with L2
  float l2;          // wd with L2; 0 without
  float grad_limit;  // c: largest magnitude of an unscaled gradient; infinity without
  bool use_l2;       // Adam, not AdamW
};

// Where the random bits of bf16 moments come from: see moment_rounding.h.
struct MomentKeys {  // of (run seed, step, unit)
  std::uint32_t first = 0;
  std::uint32_t second = 0;
};

// All are of the same length; none overlaps another. Those that the forms do not use are ignored.
struct AdamwArrays {
  GradType grad_type = GradType::kFp32;
  ParamForm param_form = ParamForm::kFp32;
  ElementType moment_type = ElementType::kFp32;  // or kBf16
  const void* grad = nullptr;                    // of grad_type; only read
  float* master = nullptr;                       // read and written, all forms but kSplit
  std::uint16_t* param16 = nullptr;  // kSplit: read and written; kFp32AndFp16: only written
  std::uint16_t* lo = nullptr;       // read and written, kSplit
  float* m = nullptr;                // read and written, kFp32 moments
  float* v = nullptr;                // likewise
  std::uint16_t* m16 = nullptr;      // read and written, kBf16 moments
  std::uint16_t* v16 = nullptr;      // likewise
  MomentKeys moment_keys = {};       // of kBf16 moments, like the next
  std::uint64_t first_element = 0;   // which element of its unit the arrays begin with
};

// What one parameter costs in memory traffic: read + written, assuming whole cache lines.
constexpr int adamw_bytes_per_param(GradType grad, StateForm form) {
  constexpr std::uint64_t kMaster = 4;
  const std::uint64_t copy = form.param == ParamForm::kFp32AndFp16 ? 2 : 0;
  const std::uint64_t in_place = kMaster + 2 * element_bytes(form.moments);
  return static_cast<int>(element_bytes(grad) + 2 * in_place + copy);
}

}  // namespace sluice::offload
