// The arguments of an AdamW kernel, on the CPU and on the GPU: scalars and arrays, as plain data
// (CUDA code includes this file).
#pragma once

#include <cstdint>

#include "offload/element_types.h"

namespace sluice::offload {

// Computed once a step by make_adamw_scalars(), in double, and then rounded to float.
struct AdamwScalars {
  float grad_scale;       // s: undoes the loss scale and clips
  float one_minus_beta1;  // 1 - b1
  float one_minus_beta2;  // 1 - b2
  float inv_sqrt_c2;      // 1 / sqrt(c2), c2 = 1 - b2^t
  float eps;
  float step_size;   // lr / c1, c1 = 1 - b1^t
  float decay;       // lr * wd; 0 with L2
  float l2;          // wd with L2; 0 without
  float grad_limit;  // c: largest magnitude of an unscaled gradient; infinity: no limit
  bool use_l2;       // Adam, not AdamW
};

// Keys of the random bits that round bf16 moments: see moment_rounding.h.
struct MomentKeys {  // derived from (run seed, step, unit)
  std::uint32_t first = 0;
  std::uint32_t second = 0;
};

// All arrays have the same length and do not overlap. Arrays that the forms do not use are ignored.
struct AdamwArrays {
  GradType grad_type = GradType::kFp32;
  ParamForm param_form = ParamForm::kFp32;
  ElementType moment_type = ElementType::kFp32;  // or kBf16
  const void* grad = nullptr;                    // type grad_type; only read
  float* master = nullptr;                       // read and written, all forms but kSplit
  std::uint16_t* param16 = nullptr;  // kSplit: read and written; kFp32AndFp16: only written
  std::uint16_t* lo = nullptr;       // read and written, kSplit
  float* m = nullptr;                // read and written, kFp32 moments
  float* v = nullptr;                // read and written, kFp32 moments
  std::uint16_t* m16 = nullptr;      // read and written, kBf16 moments
  std::uint16_t* v16 = nullptr;      // read and written, kBf16 moments
  MomentKeys moment_keys = {};       // this and the next: for kBf16 moments
  std::uint64_t first_element = 0;   // the unit's element at which the arrays begin
};

// Memory traffic per parameter in bytes: read + written, assuming whole cache lines.
constexpr int adamw_bytes_per_param(GradType grad, StateForm form) {
  constexpr std::uint64_t kMaster = 4;
  const std::uint64_t copy = form.param == ParamForm::kFp32AndFp16 ? 2 : 0;
  const std::uint64_t in_place = kMaster + 2 * element_bytes(form.moments);
  return static_cast<int>(element_bytes(grad) + 2 * in_place + copy);
}

}  // namespace sluice::offload
