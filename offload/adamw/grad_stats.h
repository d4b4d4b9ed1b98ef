// The gradient's last pass before the optimizer: cast from fp32 to the 16-bit gradient type, and
// the sum of squares of the values as cast, from which also follows whether all are finite.
//
// Rounding: to nearest, ties to even; a NaN becomes the canonical one (bf16 0x7FC0, fp16 0x7E00).
// Sum:      see square_sum.h; squares of fp32 numbers are exact in double.
// Bits:     the same from every Isa, from CUDA, for every division and number of threads.
#pragma once

#include <cstdint>

#include "aio/executor.h"
#include "offload/adamw/adamw_arrays.h"
#include "offload/adamw/isa.h"
#include "offload/adamw/square_sum.h"

namespace sluice::offload {

struct GradCast {
  const float* grad = nullptr;    // the range's first element
  GradType to = GradType::kFp32;  // kFp32: no cast, the sum alone
  std::uint16_t* out = nullptr;   // of the same length, unless `to` is kFp32; overlaps nothing
  std::uint64_t elements = 0;
};

// Works on the range that begins at sum.end(), and appends it to `sum`.
void cast_and_sum(aio::Executor& executor, Isa isa, const GradCast& cast, SquareSum& sum);

}  // namespace sluice::offload
