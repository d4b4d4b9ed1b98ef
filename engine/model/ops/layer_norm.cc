#include "engine/model/ops/layer_norm.h"

#include <ATen/ops/native_layer_norm.h>
#include <ATen/ops/native_layer_norm_backward.h>

#include "engine/model/ops/fused_kernels.h"

namespace sluice::engine {
namespace {

// ATen's CPU kernel keeps statistics in 16 bits unless the parameters are fp32. Its CUDA kernel
// needs parameters and input of one dtype, and always has fp32 statistics.
at::Tensor as_kernel_wants(const at::Tensor& parameter) {
  return parameter.is_cpu() && c10::isReducedFloatingType(parameter.scalar_type())
             ? parameter.to(at::kFloat)
             : parameter;
}

Normed normed_of(FusedNorm fused) {
  return {std::move(fused.output), std::move(fused.mean), std::move(fused.rstd)};
}

}  // namespace

Normed layer_norm(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias,
                  double epsilon) {
  if (cuda_fuses(input)) return normed_of(fused_norm(input, {weight, bias, epsilon}));
  auto [output, mean, rstd] = at::native_layer_norm(input, weight.sizes(), as_kernel_wants(weight),
                                                    as_kernel_wants(bias), epsilon);
  return {std::move(output), std::move(mean), std::move(rstd)};
}

Normed add_and_norm(at::Tensor& branch, const at::Tensor& residual, const Dropout& dropout,
                    const at::Tensor& weight, const at::Tensor& bias, double epsilon) {
  if (cuda_fuses(branch) && cuda_fuses(residual)) {
    return normed_of(fused_add_and_norm(branch, residual, dropout, {weight, bias, epsilon}));
  }
  drop_in_place(branch, dropout);
  branch.add_(residual);
  return layer_norm(branch, weight, bias, epsilon);
}

at::Tensor layer_norm_backward(at::Tensor grad_output, const at::Tensor& input,
                               const Normed& normed, const at::Tensor& weight,
                               const at::Tensor& bias, const NormGradients& gradients,
                               const at::Tensor& residual) {
  if (cuda_fuses(grad_output) && cuda_fuses(input) &&
      (!residual.defined() || cuda_fuses(residual))) {
    fused_norm_backward(grad_output, {input, normed.mean, normed.rstd, weight, residual},
                        {gradients.weight, gradients.bias});
    return grad_output;
  }
  auto [grad_input, grad_weight, grad_bias] = at::native_layer_norm_backward(
      grad_output, input, weight.sizes(), normed.mean, normed.rstd, as_kernel_wants(weight),
      as_kernel_wants(bias), {true, true, true});
  gradients.weight.add_(grad_weight);
  gradients.bias.add_(grad_bias);
  if (residual.defined()) grad_input.add_(residual);
  return grad_input;
}

}  // namespace sluice::engine
