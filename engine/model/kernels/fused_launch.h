// Fused passes over 16-bit rows on CUDA, without LibTorch's headers: norms, elementwise functions,
// rotary positions, and passes that also sum each column. Arguments are pointers, a dtype and a
// stream. Columns, and numbers of elements, are a multiple of 8. Sums are in fp32, in an order that
// depends only on the shape.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "engine/model/activation.h"
#include "engine/model/kernels/cuda_launch.h"

namespace sluice::engine {

// ---- LayerNorm and RMSNorm: forward after a residual addition, and backward with the residual's
// gradient, each in one pass over memory. This is the largest number of columns.
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
  bool weight_is_fp32 = false;  // not in `dtype`; of an RMSNorm
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
  bool weight_is_fp32 = false;
  // [norm_partial_rows(rows), 2, columns]: weight, bias; the weight alone for an RMSNorm.
  float* partials = nullptr;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  CudaDtype dtype = CudaDtype::kBfloat16;
};
cudaError_t launch_norm_backward(const NormBackwardLaunch& launch, cudaStream_t stream);
std::int64_t norm_partial_rows(std::int64_t rows);

// ---- elementwise passes
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

// A function of a row's first half, times its second half; or ClampedGate's function of both.
struct GatedLaunch {
  const void* gate_and_up = nullptr;  // [rows, 2 * columns]
  void* product = nullptr;            // [rows, columns]
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  Activation activation = Activation::kSilu;
  ClampedGate clamped;  // instead of `activation`, if it exists
  CudaDtype dtype = CudaDtype::kBfloat16;
};
cudaError_t launch_gated(const GatedLaunch& launch, cudaStream_t stream);

struct GatedBackwardLaunch {
  void* gate_and_up = nullptr;  // becomes its gradient
  void* gradient = nullptr;     // of the product; becomes the product
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  Activation activation = Activation::kSilu;
  ClampedGate clamped;  // instead of `activation`, if it exists
  CudaDtype dtype = CudaDtype::kBfloat16;
};
cudaError_t launch_gated_backward(const GatedBackwardLaunch& launch, cudaStream_t stream);

// Sums of some rows, each perhaps times a weight, in the order of the terms.
struct SumRowsLaunch {
  const void* from = nullptr;            // [any, columns]
  const std::int64_t* places = nullptr;  // [terms, rows]: rows of `from`
  const float* weights = nullptr;        // [rows, terms]; null: 1
  void* to = nullptr;                    // [rows, columns]
  std::int64_t terms = 0;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  CudaDtype dtype = CudaDtype::kBfloat16;
};
cudaError_t launch_sum_rows(const SumRowsLaunch& launch, cudaStream_t stream);

// ---- rotary positions (engine/model/ops/rotary.h), with or without a norm of each head before the
// rotation. A row has the queries of all heads, then their keys, and more that is not read. The
// numbers i and i + pairs of a head are a pair; those after the pairs stay.
constexpr int kMostRotaryPairs = 128;

struct RotaryShape {
  std::int64_t rows = 0;
  std::int64_t heads = 0;     // of queries
  std::int64_t kv_heads = 0;  // of keys
  std::int64_t head_dim = 0;  // a multiple of 16; a power of two with a norm
  std::int64_t pairs = 0;     // a multiple of 8, at most head_dim / 2
  CudaDtype dtype = CudaDtype::kBfloat16;
};

struct RotaryTurns {
  float frequencies[kMostRotaryPairs] = {};
  float scale = 1;
  const std::int64_t* positions = nullptr;  // [rows]; null: first + row % tokens
  std::int64_t first = 0;
  std::int64_t tokens = 1;
  const float* of_rows = nullptr;  // [rows, pairs], instead of `frequencies`
};

// The weights of one head, [head_dim]; null: there is no norm.
struct RotaryNorms {
  const void* query = nullptr;
  const void* key = nullptr;
  bool are_fp32 = false;
  float epsilon = 0;
};

struct RotaryLaunch {
  const void* from = nullptr;  // [rows, from_columns]
  void* to = nullptr;          // [rows, to_columns]; may be `from`
  std::int64_t from_columns = 0;
  std::int64_t to_columns = 0;
  RotaryShape shape;
  RotaryTurns turns;
  RotaryNorms norms;
};
cudaError_t launch_rotary(const RotaryLaunch& launch, cudaStream_t stream);

struct RotaryBackwardLaunch {
  void* gradient = nullptr;    // [rows, columns], in place
  const void* from = nullptr;  // forward's input, for norms; [rows, columns]
  std::int64_t columns = 0;
  RotaryShape shape;
  RotaryTurns turns;
  RotaryNorms norms;
  // For norms: [rotary_partial_rows(rows), 2, head_dim]: the queries' weight, the keys' weight.
  float* partials = nullptr;
};
cudaError_t launch_rotary_backward(const RotaryBackwardLaunch& launch, cudaStream_t stream);
std::int64_t rotary_partial_rows(std::int64_t rows);

// ---- passes that also sum each column, for gradients of biases. Sums are over blocks of rows;
// launch_add_partials() then adds the blocks' sums to a gradient.
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
