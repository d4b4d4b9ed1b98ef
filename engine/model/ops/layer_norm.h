// LayerNorm over the last dimension, statistics in fp32 (float64 for float64).
#pragma once

#include <ATen/core/Tensor.h>

#include "engine/model/ops/dropout.h"

namespace sluice::engine {

struct Normed {
  at::Tensor output;
  at::Tensor mean;
  at::Tensor rstd;
};
Normed layer_norm(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias,
                  double epsilon);

// Replaces `branch` by the residual stream, its own dropout plus `residual`, and returns its norm.
Normed add_and_norm(at::Tensor& branch, const at::Tensor& residual, const Dropout& dropout,
                    const at::Tensor& weight, const at::Tensor& bias, double epsilon);

struct NormGradients {
  const at::Tensor& weight;  // fp32, added to
  const at::Tensor& bias;
};
// Returns the input's gradient plus `residual`, which may be undefined. The result may reuse the
// memory of grad_output, which the caller must not use afterwards.
at::Tensor layer_norm_backward(at::Tensor grad_output, const at::Tensor& input,
                               const Normed& normed, const at::Tensor& weight,
                               const at::Tensor& bias, const NormGradients& gradients,
                               const at::Tensor& residual);

}  // namespace sluice::engine
