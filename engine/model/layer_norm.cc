#include "engine/model/layer_norm.h"

#include <ATen/ops/native_layer_norm.h>
#include <ATen/ops/native_layer_norm_backward.h>

namespace sluice::engine {
namespace {

constexpr double kEpsilon = 1e-5;

// ATen's CPU kernel keeps statistics in 16 bits unless the parameters are fp32; its CUDA kernel
// wants parameters and input of one dtype and has fp32 statistics anyway.
at::Tensor as_kernel_wants(const at::Tensor& parameter) {
  return parameter.is_cpu() && c10::isReducedFloatingType(parameter.scalar_type())
             ? parameter.to(at::kFloat)
             : parameter;
}

}  // namespace

Normed layer_norm(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias) {
  auto [output, mean, rstd] = at::native_layer_norm(input, weight.sizes(), as_kernel_wants(weight),
                                                    as_kernel_wants(bias), kEpsilon);
  return {std::move(output), std::move(mean), std::move(rstd)};
}

at::Tensor layer_norm_backward(const at::Tensor& grad_output, const at::Tensor& input,
                               const Normed& normed, const at::Tensor& weight,
                               const at::Tensor& bias, const NormGradients& gradients) {
  auto [grad_input, grad_weight, grad_bias] = at::native_layer_norm_backward(
      grad_output, input, weight.sizes(), normed.mean, normed.rstd, as_kernel_wants(weight),
      as_kernel_wants(bias), {true, true, true});
  gradients.weight.add_(grad_weight);
  gradients.bias.add_(grad_bias);
  return grad_input;
}

}  // namespace sluice::engine
