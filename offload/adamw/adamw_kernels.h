// The AdamW kernels, one for each Isa. They process elements [begin, end) of the arrays on the
// calling thread, with MXCSR at its default. Only for CPUs that have the instructions.
#pragma once

#include <cstddef>

#include "offload/adamw/adamw_arrays.h"

namespace sluice::offload {

using AdamwKernel = void(const AdamwScalars& scalars, const AdamwArrays& arrays, std::size_t begin,
                         std::size_t end);

AdamwKernel adamw_scalar;
AdamwKernel adamw_avx2;
AdamwKernel adamw_avx512;

}  // namespace sluice::offload
