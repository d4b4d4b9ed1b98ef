// Elementwise passes over 16-bit numbers on CUDA; arguments are pointers, a dtype and a stream.
// Elements, and columns, are a multiple of 8.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "engine/model/activation.h"
#include "engine/model/kernels/cuda_launch.h"

namespace sluice::engine {

struct ActivationLaunch {
  const void* from = nullptr;
  void* to = nullptr;
  std::int64_t elements = 0;
  Activation activation = Activation::kGeluTanh;
  CudaDtype dtype = CudaDtype::kBfloat16;
};
cudaError_t launch_activation(const ActivationLaunch& launch, cudaStream_t stream);

// sum = masked sum + residual.
struct AddResidualLaunch {
  void* sum = nullptr;
  const void* residual = nullptr;
  MaskLaunch mask;
  std::int64_t elements = 0;
  CudaDtype dtype = CudaDtype::kBfloat16;
};
cudaError_t launch_add_residual(const AddResidualLaunch& launch, cudaStream_t stream);

// The SiLU of a row's first half, times its second half.
struct SiluGatedLaunch {
  const void* gate_and_up = nullptr;  // [rows, 2 * columns]
  void* product = nullptr;            // [rows, columns]
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  CudaDtype dtype = CudaDtype::kBfloat16;
};
cudaError_t launch_silu_gated(const SiluGatedLaunch& launch, cudaStream_t stream);

struct SiluGatedBackwardLaunch {
  void* gate_and_up = nullptr;  // becomes its gradient
  void* gradient = nullptr;     // of the product; becomes the product
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  CudaDtype dtype = CudaDtype::kBfloat16;
};
cudaError_t launch_silu_gated_backward(const SiluGatedBackwardLaunch& launch, cudaStream_t stream);

}  // namespace sluice::engine
