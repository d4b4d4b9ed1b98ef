// The gradient's last pass before the optimizer. It casts fp32 to the 16-bit gradient type and sums
// the squares of the cast values. The sum also shows whether all values are finite.
//
// Rounding: to nearest, ties to even; a NaN becomes the canonical one (bf16 0x7FC0, fp16 0x7E00).
// Sum:      see square_sum.h; squares of fp32 numbers are exact in double.
// Bits:     the same for every Isa, for CUDA, and for every division and number of threads.
#pragma once

#include <cstdint>

#include "aio/executor.h"
#include "offload/adamw/adamw_arrays.h"
#include "offload/adamw/isa.h"
#include "offload/adamw/square_sum.h"

namespace sluice::offload {

struct GradCast {
  const float* grad = nullptr;    // the range's first element
  GradType to = GradType::kFp32;  // kFp32: no cast, only the sum
  std::uint16_t* out = nullptr;   // same length, unless `to` is kFp32; must not overlap
  std::uint64_t elements = 0;
};

// Works on the range that begins at sum.end(), and appends it to `sum`.
void cast_and_sum(aio::Executor& executor, Isa isa, const GradCast& cast, SquareSum& sum);

}  // namespace sluice::offload
