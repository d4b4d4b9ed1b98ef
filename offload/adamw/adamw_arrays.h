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

// All are of the same length; none overlaps another. Those that the form does not use are ignored.
struct AdamwArrays {
  GradType grad_type = GradType::kFp32;
  ParamForm param_form = ParamForm::kFp32;
  const void* grad = nullptr;        // of grad_type; only read
  float* master = nullptr;           // read and written, all forms but kSplit
  std::uint16_t* param16 = nullptr;  // kSplit: read and written; kFp32AndFp16: only written
  std::uint16_t* lo = nullptr;       // read and written, kSplit
  float* m = nullptr;                // read and written
  float* v = nullptr;                // read and written
};

// What one parameter costs in memory traffic: read + written, assuming whole cache lines.
constexpr int adamw_bytes_per_param(GradType grad, ParamForm form) {
  const auto gradient = static_cast<int>(element_bytes(grad));
  const int copy = form == ParamForm::kFp32AndFp16 ? 2 : 0;
  return gradient + 3 * (4 + 4) + copy;
}

}  // namespace sluice::offload
