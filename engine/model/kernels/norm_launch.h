// LayerNorm and RMSNorm of 16-bit rows on CUDA: forward after a residual addition, and backward
// with the residual's gradient, each in one pass over memory. Arguments are pointers, a dtype and a
// stream. Statistics and sums are in fp32, in an order that depends only on the shape.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "engine/model/kernels/cuda_launch.h"

namespace sluice::engine {

// Columns are a multiple of 8, at most this.
constexpr std::int64_t kWidestNorm = 16384;

struct NormForwardLaunch {
  const void* input = nullptr;     // [rows, columns]
  const void* residual = nullptr;  // null: none
  MaskLaunch mask;                 // on the input
  void* sum = nullptr;             // input + residual; may be the input; unused without a residual
  void* output = nullptr;          // the normed sum
  float* mean = nullptr;           // [rows]; null: an RMSNorm, which has no bias
  float* rstd = nullptr;
  const void* weight = nullptr;  // [columns]
  const void* bias = nullptr;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  float epsilon = 0;
  CudaDtype dtype = CudaDtype::kBfloat16;
};
cudaError_t launch_norm_forward(const NormForwardLaunch& launch, cudaStream_t stream);

struct NormBackwardLaunch {
  const void* grad_output = nullptr;  // [rows, columns]
  const void* input = nullptr;        // the norm's input
  const void* residual = nullptr;     // added to grad_input; null: none
  void* grad_input = nullptr;         // may be grad_output
  const float* mean = nullptr;        // null: an RMSNorm
  const float* rstd = nullptr;
  const void* weight = nullptr;
  // [norm_partial_rows(rows), 2, columns]: weight, bias; the weight alone for an RMSNorm.
  float* partials = nullptr;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  CudaDtype dtype = CudaDtype::kBfloat16;
};
cudaError_t launch_norm_backward(const NormBackwardLaunch& launch, cudaStream_t stream);
std::int64_t norm_partial_rows(std::int64_t rows);

}  // namespace sluice::engine
