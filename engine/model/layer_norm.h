// LayerNorm over the last dimension, epsilon 1e-5, statistics in fp32 (float64 for float64).
#pragma once

#include <ATen/core/Tensor.h>

namespace sluice::engine {

struct Normed {
  at::Tensor output;
  at::Tensor mean;
  at::Tensor rstd;
};
Normed layer_norm(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias);

struct NormGradients {
  const at::Tensor& weight;  // fp32, added to
  const at::Tensor& bias;
};
// Returns the input's gradient.
at::Tensor layer_norm_backward(const at::Tensor& grad_output, const at::Tensor& input,
                               const Normed& normed, const at::Tensor& weight,
                               const at::Tensor& bias, const NormGradients& gradients);

}  // namespace sluice::engine
