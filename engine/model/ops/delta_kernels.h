// The kernels of kernels/delta_rows_launch.h for tensors, on the current stream. They serve 16-bit
// CUDA tensors of some shapes; other tensors use ATen's operators. In a build without CUDA nothing
// fits, and the rest throws.
//
// Gradients of parameters are fp32 and are added to; they may be undefined. The same inputs give
// the same bits.
#pragma once

#include <ATen/core/Tensor.h>

#include "engine/model/documents.h"

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

}  // namespace sluice::engine
