// Passes over 16-bit rows on CUDA that also sum each column, for gradients of biases. Sums are in
// fp32, over blocks of rows, in an order that depends only on the shape. launch_add_partials() then
// adds the blocks' sums to a gradient. Arguments are pointers, a dtype and a stream. Columns are a
// multiple of 8.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "engine/model/activation.h"
#include "engine/model/kernels/cuda_launch.h"

namespace sluice::engine {

struct ColumnShape {
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  CudaDtype dtype = CudaDtype::kBfloat16;
};
// `partials` of each pass: fp32 [column_partial_rows(rows), columns].
std::int64_t column_partial_rows(std::int64_t rows);

// The sums of `from` after the mask. The masked numbers are written to `to` unless that is null.
struct MaskedSumLaunch {
  const void* from = nullptr;
  void* to = nullptr;
  MaskLaunch mask;
  float* partials = nullptr;
};
cudaError_t launch_masked_sum(const MaskedSumLaunch& launch, const ColumnShape& shape,
                              cudaStream_t stream);

// Replaces `input` by the function's output, and the gradient of the output by that of the input,
// which is summed.
struct ActivationBackwardLaunch {
  void* input = nullptr;
  void* gradient = nullptr;
  float* partials = nullptr;
  Activation activation = Activation::kGeluTanh;
};
cudaError_t launch_activation_backward(const ActivationBackwardLaunch& launch,
                                       const ColumnShape& shape, cudaStream_t stream);

// Three matrices, concatenated, with their sums; the second is as wide as the third.
struct GatherLaunch {
  const void* first = nullptr;
  const void* second = nullptr;
  const void* third = nullptr;
  std::int64_t first_columns = 0;  // a multiple of 8, like the others'
  void* to = nullptr;              // [rows, columns]
  float* partials = nullptr;
};
cudaError_t launch_gather(const GatherLaunch& launch, const ColumnShape& shape,
                          cudaStream_t stream);

// Adds the sums of partials' rows to one gradient, or one half each to two gradients of columns /
// 2.
struct AddPartialsLaunch {
  const float* partials = nullptr;  // [rows, columns]
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  float* gradient = nullptr;
  float* second_gradient = nullptr;  // null: there is only one
};
cudaError_t launch_add_partials(const AddPartialsLaunch& launch, cudaStream_t stream);

}  // namespace sluice::engine
