#include "engine/model/ops/gated_norm.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/sigmoid_backward.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/silu_backward.h>
#include <ATen/ops/sum.h>

#include <algorithm>

#include "engine/model/fp32_pieces.h"
#include "engine/model/ops/delta_kernels.h"

namespace sluice::engine {
namespace {

at::ScalarType wide_of(const at::Tensor& input) {
  return input.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

// Tokens of a pass: [rows, heads, D].
at::Tensor by_head(const at::Tensor& all, std::int64_t first, std::int64_t rows, std::int64_t dim) {
  return all.flatten(0, 1).narrow(0, first, rows).unflatten(-1, {-1, dim});
}

template <typename Visit>
void for_each_piece(const at::Tensor& input, const Visit& visit) {
  const std::int64_t all = input.size(0) * input.size(1);
  const std::int64_t piece = fp32_piece_rows(input.size(-1));
  for (std::int64_t first = 0; first < all; first += piece)
    visit(first, std::min(piece, all - first));
}

struct Normed {
  at::Tensor rstd;
  at::Tensor normed;  // wide
};
Normed normed_of(const at::Tensor& input, double epsilon) {
  at::Tensor wide = input.to(wide_of(input));
  at::Tensor rstd = at::rsqrt(at::mean(wide.square(), {-1}, /*keepdim=*/true).add_(epsilon));
  return {rstd, wide.mul(rstd)};
}

}  // namespace

at::Tensor gated_rms_norm(const at::Tensor& input, const at::Tensor& gate, const at::Tensor& weight,
                          double epsilon) {
  if (cuda_norms_gated(input, gate, weight)) return fused_gated_norm(input, gate, weight, epsilon);
  at::Tensor output = at::empty(input.sizes(), input.options());
  const std::int64_t dim = weight.size(0);
  for_each_piece(input, [&](std::int64_t first, std::int64_t rows) {
    const Normed made = normed_of(by_head(input, first, rows, dim), epsilon);
    const at::Tensor scaled = made.normed.to(input.scalar_type()).mul_(weight);
    const at::Tensor open = at::silu(by_head(gate, first, rows, dim).to(wide_of(input)));
    by_head(output, first, rows, dim).copy_(open.mul(scaled));
  });
  return output;
}

void gated_rms_norm_backward(const at::Tensor& gradient, const at::Tensor& input,
                             const at::Tensor& gate, const at::Tensor& weight, double epsilon,
                             const at::Tensor& grad_gate, const at::Tensor& weight_gradient) {
  if (cuda_norms_gated(input, gate, weight) && cuda_norms_gated(gradient, grad_gate, weight))
    return fused_gated_norm_backward(
        input, gate, weight, epsilon,
        {.output = gradient, .gate = grad_gate, .weight = weight_gradient});
  const at::ScalarType wide = wide_of(input);
  const std::int64_t dim = weight.size(0);
  const at::Tensor gain = weight.to(wide);
  for_each_piece(input, [&](std::int64_t first, std::int64_t rows) {
    const auto [rstd, normed] = normed_of(by_head(input, first, rows, dim), epsilon);
    const at::Tensor rounded = normed.to(input.scalar_type());
    const at::Tensor opening = by_head(gate, first, rows, dim).to(wide);
    const at::Tensor gradient_here = by_head(gradient, first, rows, dim);
    const at::Tensor from = gradient_here.to(wide);
    by_head(grad_gate, first, rows, dim)
        .copy_(at::silu_backward(from.mul(rounded.mul(weight)), opening));
    at::Tensor scaled = from.mul(at::silu(opening));
    if (weight_gradient.defined())
      weight_gradient.add_(at::sum(scaled.mul(rounded), at::IntArrayRef({0, 1})));
    scaled.mul_(gain);
    const at::Tensor along = at::mean(scaled.mul(normed), {-1}, /*keepdim=*/true);
    gradient_here.copy_(scaled.sub_(normed.mul(along)).mul_(rstd));
  });
}

at::Tensor sigmoid_gated(const at::Tensor& input, const at::Tensor& gate) {
  return at::sigmoid(gate).mul_(input);
}

void sigmoid_gated_backward(const at::Tensor& gradient, const at::Tensor& input,
                            const at::Tensor& gate) {
  const at::Tensor open = at::sigmoid(gate);
  gate.copy_(at::sigmoid_backward(gradient.mul(input), open));
  gradient.mul_(open);
}

}  // namespace sluice::engine
