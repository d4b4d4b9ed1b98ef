// Single numbers of the activations' dtypes; the arithmetic is in fp32.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "engine/model/kernels/cuda_launch.h"

namespace sluice::engine {

template <typename Scalar>
__device__ float widen(Scalar value) {
  return static_cast<float>(value);
}

template <typename Scalar>
__device__ Scalar narrow(float value);
template <>
__device__ inline float narrow<float>(float value) {
  return value;
}
template <>
__device__ inline __nv_bfloat16 narrow<__nv_bfloat16>(float value) {
  return __float2bfloat16_rn(value);
}
template <>
__device__ inline __half narrow<__half>(float value) {
  return __float2half_rn(value);
}

// Calls `visit` with a null pointer of the dtype's type.
template <typename Visit>
void with_type(CudaDtype dtype, Visit visit) {
  switch (dtype) {
    case CudaDtype::kFloat:
      return visit(static_cast<float*>(nullptr));
    case CudaDtype::kBfloat16:
      return visit(static_cast<__nv_bfloat16*>(nullptr));
    case CudaDtype::kHalf:
      return visit(static_cast<__half*>(nullptr));
  }
}

}  // namespace sluice::engine
