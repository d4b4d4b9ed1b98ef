#include "engine/model/ops/rms_norm.h"

#include <ATen/ops/mean.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros_like.h>

#include <utility>

#include "engine/model/ops/fused_kernels.h"

namespace sluice::engine {
namespace {

at::ScalarType statistics_of(const at::Tensor& input) {
  return input.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

// The kernel always sums a gradient, wanted or not.
at::Tensor unwanted_gradient(const at::Tensor& weight) {
  return at::zeros_like(weight, weight.options().dtype(at::kFloat));
}

RmsNormed normed_of(FusedNorm fused) { return {std::move(fused.output), std::move(fused.rstd)}; }

}  // namespace

RmsNormed rms_norm(const at::Tensor& input, const at::Tensor& weight, double epsilon) {
  if (cuda_fuses(input)) return normed_of(fused_norm(input, {weight, {}, epsilon}));
  const at::Tensor wide = input.to(statistics_of(input));
  at::Tensor rstd = at::rsqrt(at::mean(wide.mul(wide), {-1}, /*keepdim=*/true).add_(epsilon));
  const bool is_wide = weight.scalar_type() == wide.scalar_type();
  at::Tensor output = wide.mul(rstd);
  if (is_wide) output.mul_(weight);
  output = output.to(input.scalar_type());
  if (!is_wide) output.mul_(weight);
  return {std::move(output), std::move(rstd)};
}

RmsNormed add_and_rms_norm(at::Tensor& branch, const at::Tensor& residual, const Dropout& dropout,
                           const at::Tensor& weight, double epsilon) {
  if (cuda_fuses(branch) && cuda_fuses(residual))
    return normed_of(fused_add_and_norm(branch, residual, dropout, {weight, {}, epsilon}));
  drop_in_place(branch, dropout);
  branch.add_(residual);
  return rms_norm(branch, weight, epsilon);
}

at::Tensor rms_norm_backward(at::Tensor grad_output, const at::Tensor& input,
                             const at::Tensor& rstd, const at::Tensor& weight,
                             const at::Tensor& weight_gradient, const at::Tensor& residual) {
  if (cuda_fuses(grad_output) && cuda_fuses(input) &&
      (!residual.defined() || cuda_fuses(residual))) {
    const at::Tensor gradient =
        weight_gradient.defined() ? weight_gradient : unwanted_gradient(weight);
    fused_norm_backward(grad_output, {input, {}, rstd, weight, residual}, {gradient, {}});
    return grad_output;
  }
  const at::ScalarType wide = statistics_of(input);
  const at::Tensor normed = input.to(wide).mul(rstd);
  if (weight_gradient.defined()) {
    const at::Tensor factor =
        weight.scalar_type() == wide ? normed : normed.to(input.scalar_type()).to(wide);
    const at::Tensor product = grad_output.to(wide).mul(factor);
    weight_gradient.add_(at::sum(product.reshape({-1, input.size(-1)}), {0}));
  }
  at::Tensor gradient = grad_output.to(wide).mul(weight.to(wide));
  const at::Tensor along = at::mean(gradient.mul(normed), {-1}, /*keepdim=*/true);
  gradient.sub_(normed.mul(along)).mul_(rstd);
  at::Tensor result = gradient.to(input.scalar_type());
  if (residual.defined()) result.add_(residual);
  return result;
}

}  // namespace sluice::engine
