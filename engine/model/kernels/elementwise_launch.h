// Forward passes over 16-bit numbers on CUDA, element by element: pointers, a dtype, a stream.
// Elements are a multiple of 8.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "engine/model/kernels/cuda_launch.h"

namespace sluice::engine {

// The tanh GELU.
struct GeluLaunch {
  const void* from = nullptr;
  void* to = nullptr;
  std::int64_t elements = 0;
  CudaDtype dtype = CudaDtype::kBfloat16;
};
cudaError_t launch_gelu(const GeluLaunch& launch, cudaStream_t stream);

// sum = masked sum + residual.
struct AddResidualLaunch {
  void* sum = nullptr;
  const void* residual = nullptr;
  MaskLaunch mask;
  std::int64_t elements = 0;
  CudaDtype dtype = CudaDtype::kBfloat16;
};
cudaError_t launch_add_residual(const AddResidualLaunch& launch, cudaStream_t stream);

}  // namespace sluice::engine
