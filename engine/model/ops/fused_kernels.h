// The fused kernels of fused_launch.h for tensors, on the current stream. They serve the 16-bit
// CUDA tensors for which cuda_fuses() is true; other tensors use ATen's operators. In a build
// without CUDA each throws, and cuda_fuses() is always false.
//
// Gradients of parameters are fp32 and are added to; those of biases may be undefined. The same
// inputs give the same bits.
#pragma once

#include <ATen/core/Tensor.h>

#include "engine/model/activation.h"
#include "engine/model/ops/dropout.h"
#include "engine/model/ops/rotary.h"

namespace sluice::engine {

// True for contiguous bf16 or fp16 tensors on CUDA, aligned to 16 bytes. The rows (the last
// dimension) must be a multiple of 8 numbers and not too wide.
bool cuda_fuses(const at::Tensor& rows);

// LayerNorm, or RMSNorm without a mean if there is no bias.
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
// Replaces `sum` by its own dropout plus `residual`, and returns the norm of the result.
FusedNorm fused_add_and_norm(at::Tensor& sum, const at::Tensor& residual, const Dropout& dropout,
                             const NormParameters& parameters);

struct FusedNormBackward {
  const at::Tensor& input;
  const at::Tensor& mean;  // undefined for an RMSNorm, whose gradients have no bias
  const at::Tensor& rstd;
  const at::Tensor& weight;
  const at::Tensor& residual;  // added to the result; may be undefined
};
struct FusedNormGradients {
  const at::Tensor& weight;
  const at::Tensor& bias;
};
// Replaces the gradient of the norm's output by that of its input, plus the residual.
void fused_norm_backward(at::Tensor& gradient, const FusedNormBackward& norm,
                         const FusedNormGradients& gradients);

// See activate.h.
at::Tensor fused_activation(const at::Tensor& input, Activation activation);
void fused_activation_backward(at::Tensor& input, at::Tensor& gradient, Activation activation,
                               const at::Tensor& bias_gradient);

// Whether each half of the rows suits a kernel on its own.
bool cuda_fuses_halves(const at::Tensor& rows);
// See activate.h.
struct GateRule {
  Activation activation = Activation::kSilu;
  ClampedGate clamped = {};  // instead of `activation`, if it exists
};
at::Tensor fused_gated(const at::Tensor& gate_and_up, const GateRule& rule);
void fused_gated_backward(at::Tensor& gate_and_up, at::Tensor& gradient, const GateRule& rule);

// [T, n] from rows [R, n]: for each t, the sum of rows places[j, t] over j, times weights[t, j]
// (fp32) unless undefined. `places`: int64 [k, T].
at::Tensor fused_sum_of_rows(const at::Tensor& rows, const at::Tensor& places,
                             const at::Tensor& weights);

// See rotary.h. `packed`: rows of queries, keys, and values that are not touched. Fewer shapes fit
// with norms of heads.
bool cuda_rotates(const at::Tensor& packed, const Rotary& rotary);
bool cuda_rotates_normed(const at::Tensor& packed, const Rotary& rotary);
// Without norms, `norms` is null, and `to` may be `from`.
void fused_rotate(const at::Tensor& from, at::Tensor& to, const HeadNorms* norms,
                  const Rotary& rotary);
// In place. `from`: forward's input. Without norms it is null, like `norms` and `gradients`.
void fused_rotate_backward(at::Tensor& gradient, const at::Tensor* from, const HeadNorms* norms,
                           const HeadNormWeights* gradients, const Rotary& rotary);

// Replaces `sum` by its own dropout plus `residual`.
void fused_add_residual(at::Tensor& sum, const at::Tensor& residual, const Dropout& dropout);

// Applies dropout to the rows and adds their columns to bias_gradient; returns `rows` itself if
// dropout is not active.
at::Tensor fused_dropout_and_sum(const at::Tensor& rows, const Dropout& dropout,
                                 const at::Tensor& bias_gradient);

// Three contiguous tensors, concatenated in `gathered`; the second is as wide as the third. Their
// columns are added to bias_gradient.
struct QkvGradients {
  const at::Tensor& first;
  const at::Tensor& second;
  const at::Tensor& third;
};
void fused_gather(const QkvGradients& parts, at::Tensor& gathered, const at::Tensor& bias_gradient);

}  // namespace sluice::engine
