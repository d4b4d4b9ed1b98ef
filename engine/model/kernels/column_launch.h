// Passes over 16-bit rows on CUDA that also sum each column, for gradients of biases: in blocks of
// rows, in fp32, in an order that the shape alone decides; launch_add_partials() then adds the
// blocks' sums to a gradient. Pointers, a dtype, a stream. Columns are a multiple of 8.
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

// The sums of `from` behind the mask; what they are of goes to `to` unless that is null.
struct MaskedSumLaunch {
  const void* from = nullptr;
  void* to = nullptr;
  MaskLaunch mask;
  float* partials = nullptr;
};
cudaError_t launch_masked_sum(const MaskedSumLaunch& launch, const ColumnShape& shape,
                              cudaStream_t stream);

// The function of `input`, in its place; the gradient of its output becomes that of its input, in
// its place, and is summed.
struct ActivationBackwardLaunch {
  void* input = nullptr;
  void* gradient = nullptr;
  float* partials = nullptr;
  Activation activation = Activation::kGeluTanh;
};
cudaError_t launch_activation_backward(const ActivationBackwardLaunch& launch,
                                       const ColumnShape& shape, cudaStream_t stream);

// Three matrices side by side, the second as wide as the third, and their sums.
struct GatherLaunch {
  const void* first = nullptr;
  const void* second = nullptr;
  const void* third = nullptr;
  std::int64_t first_columns = 0;  // a multiple of 8, as are the others'
  void* to = nullptr;              // [rows, columns]
  float* partials = nullptr;
};
cudaError_t launch_gather(const GatherLaunch& launch, const ColumnShape& shape,
                          cudaStream_t stream);

// Adds the sums of partials' rows to one gradient, or side by side to two of columns / 2.
struct AddPartialsLaunch {
  const float* partials = nullptr;  // [rows, columns]
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  float* gradient = nullptr;
  float* second_gradient = nullptr;  // null: there is one
};
cudaError_t launch_add_partials(const AddPartialsLaunch& launch, cudaStream_t stream);

}  // namespace sluice::engine
