// The kernels of kernels/delta_rows_launch.h and kernels/delta_parts_launch.h for tensors, on the
// current stream. They serve 16-bit CUDA tensors of some shapes; other tensors use ATen's
// operators. In a build without CUDA nothing fits, and the rest throws.
//
// Gradients of parameters are fp32 and are added to; they may be undefined. The same inputs give
// the same bits.
#pragma once

#include <ATen/core/Tensor.h>

#include "engine/model/documents.h"
#include "engine/model/ops/delta_part.h"

namespace sluice::engine {

// See causal_conv.h. Channels are even, and there are four taps.
bool cuda_convolves(const at::Tensor& input, const at::Tensor& weight);
at::Tensor fused_conv_silu(const at::Tensor& input, const at::Tensor& weight,
                           const Documents* documents);
struct ConvGradients {
  const at::Tensor& input;  // written
  const at::Tensor& weight;
};
void fused_conv_silu_backward(const at::Tensor& grad_output, const at::Tensor& input,
                              const at::Tensor& weight, const Documents* documents,
                              const ConvGradients& gradients);

// See gated_norm.h. The input is contiguous, and its heads have 8 times a power of two numbers, up
// to 256.
bool cuda_norms_gated(const at::Tensor& input, const at::Tensor& gate, const at::Tensor& weight);
at::Tensor fused_gated_norm(const at::Tensor& input, const at::Tensor& gate,
                            const at::Tensor& weight, double epsilon);
struct GatedNormGradients {
  const at::Tensor& output;  // becomes that of the input
  const at::Tensor& gate;    // written
  const at::Tensor& weight;
};
void fused_gated_norm_backward(const at::Tensor& input, const at::Tensor& gate,
                               const at::Tensor& weight, double epsilon,
                               const GatedNormGradients& gradients);

// The rows of chunks of 64 tokens, fp32 [chunks, B * value heads, 64, ...], from those of a part's
// heads. Keys have 64 or 128 numbers.
struct DeltaFactors {
  const at::Tensor& rate;  // of each row
  const at::Tensor& from_begin;
  const at::Tensor& to_end;
};
struct PreparedRows {
  at::Tensor query;
  at::Tensor key;
  at::Tensor value;
  at::Tensor wanted;  // rate value, and then rate from_begin key
  at::Tensor asks;
  at::Tensor leaves;
};
bool cuda_prepares(const PartTensors& part);
PreparedRows cuda_prepare(const PartTensors& part, const DeltaFactors& factors);

// Gradients of prepared rows. `query` and `key` are what products between rows contribute.
struct RowGradients {
  at::Tensor wanted;
  at::Tensor asks;
  at::Tensor leaves;
  at::Tensor query;
  at::Tensor key;
};
// Products of gradients with what they belong to, summed over each row.
struct AlongRows {
  at::Tensor values;  // of `wanted`
  at::Tensor keys;
  at::Tensor asks;
  at::Tensor leaves;
};
struct ChunkRows {
  const at::Tensor& query;
  const at::Tensor& key;
  const at::Tensor& value;
};
// Writes the gradients of a part's queries, keys and values.
AlongRows cuda_finish(const PartTensors& part, const DeltaFactors& factors, const ChunkRows& rows,
                      const RowGradients& of, const PartTensors& gradients);

}  // namespace sluice::engine
