// The fused kernels of norm_launch.h, column_launch.h, elementwise_launch.h and rotary_launch.h on
// tensors, on the current stream. They serve 16-bit tensors on CUDA, which cuda_fuses() tells;
// everything else has ATen's operators. Each throws in a build without CUDA, where cuda_fuses() is
// always false.
//
// Gradients of parameters are fp32 and are added to; those of biases may be undefined. The same
// inputs give the same bits.
#pragma once

#include <ATen/core/Tensor.h>

#include "engine/model/activation.h"
#include "engine/model/ops/dropout.h"
#include "engine/model/ops/rotary.h"

namespace sluice::engine {

// Contiguous bf16 or fp16 on CUDA, in rows (the last dimension) of a multiple of 8 numbers that are
// not too wide, aligned to 16 bytes.
bool cuda_fuses(const at::Tensor& rows);

// LayerNorm, or RMSNorm where there is no bias: that has no mean.
struct FusedNorm {
  at::Tensor output;
  at::Tensor mean;  // fp32, a column
  at::Tensor rstd;
};
struct NormParameters {
  const at::Tensor& weight;
  const at::Tensor& bias;
  double epsilon;
};
FusedNorm fused_norm(const at::Tensor& input, const NormParameters& parameters);
// `sum` becomes its own dropout plus `residual`, of which the norm is returned.
FusedNorm fused_add_and_norm(at::Tensor& sum, const at::Tensor& residual, const Dropout& dropout,
                             const NormParameters& parameters);

struct FusedNormBackward {
  const at::Tensor& input;
  const at::Tensor& mean;  // undefined: an RMSNorm's, whose gradients have no bias
  const at::Tensor& rstd;
  const at::Tensor& weight;
  const at::Tensor& residual;  // added to the result; may be undefined
};
struct FusedNormGradients {
  const at::Tensor& weight;
  const at::Tensor& bias;
};
// `gradient` of the norm's output becomes that of its input, plus the residual.
void fused_norm_backward(at::Tensor& gradient, const FusedNormBackward& norm,
                         const FusedNormGradients& gradients);

// activate.h
at::Tensor fused_activation(const at::Tensor& input, Activation activation);
void fused_activation_backward(at::Tensor& input, at::Tensor& gradient, Activation activation,
                               const at::Tensor& bias_gradient);

// Whether each half of the rows, side by side, is fit for a kernel on its own.
bool cuda_fuses_halves(const at::Tensor& rows);
// gated_mlp.h
at::Tensor fused_silu_gated(const at::Tensor& gate_and_up);
void fused_silu_gated_backward(at::Tensor& gate_and_up, at::Tensor& gradient);

// rotary.h. `packed`: rows of queries, keys and what is left alone; with norms of heads fewer
// shapes fit.
bool cuda_rotates(const at::Tensor& packed, const HeadShape& heads);
bool cuda_rotates_normed(const at::Tensor& packed, const HeadShape& heads);
// `to` may be `from`, without norms; these may be null.
void fused_rotate(const at::Tensor& from, at::Tensor& to, const HeadNorms* norms,
                  const Rotary& rotary);
// In place. `from`: what forward was given; null, as are the two others, without norms.
void fused_rotate_backward(at::Tensor& gradient, const at::Tensor* from, const HeadNorms* norms,
                           const HeadNormWeights* gradients, const Rotary& rotary);

// `sum` becomes its own dropout plus `residual`.
void fused_add_residual(at::Tensor& sum, const at::Tensor& residual, const Dropout& dropout);

// Dropout of rows, whose columns are added to bias_gradient: `rows` itself when not active.
at::Tensor fused_dropout_and_sum(const at::Tensor& rows, const Dropout& dropout,
                                 const at::Tensor& bias_gradient);

// Three contiguous tensors side by side in `gathered`, the second as wide as the third, whose
// columns are added to bias_gradient.
struct ThreeParts {
  const at::Tensor& first;
  const at::Tensor& second;
  const at::Tensor& third;
};
void fused_gather(const ThreeParts& parts, at::Tensor& gathered, const at::Tensor& bias_gradient);

}  // namespace sluice::engine
