#include "engine/model/gpt2/gpt2_head.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "engine/model/gpt2/gpt2_costs.h"
#include "engine/model/gpt2/gpt2_layout.h"
#include "engine/model/ops/cross_entropy.h"
#include "engine/model/ops/layer_norm.h"
#include "engine/model/ops/linear.h"

namespace sluice::engine {
namespace {

at::Tensor zero_sum(const at::Tensor& input) {
  return at::zeros({}, input.options().dtype(at::kDouble));
}

template <typename Visit>
void for_each_chunk(std::int64_t rows, std::int64_t chunk_rows, Visit visit) {
  for (std::int64_t first = 0; first < rows; first += chunk_rows) {
    visit(first, std::min(chunk_rows, rows - first));
  }
}

}  // namespace

Gpt2Head::Gpt2Head(const ModelShape& shape, std::int64_t chunk_rows)
    : vocab_(shape.vocab), chunk_rows_(chunk_rows) {}

std::int64_t Gpt2Head::chunk_rows(at::Device device) const {
  return chunk_rows_ == 0 ? loss_chunk_rows(vocab_, device.is_cpu()) : chunk_rows_;
}

HeadUnit::Loss Gpt2Head::loss_and_gradient(const UnitViews& parameters, const at::Tensor& input,
                                           const at::Tensor& targets, double grad_scale,
                                           const UnitViews& gradients) const {
  const at::NoGradGuard no_grad;
  const at::Tensor& weight = parameters[head_parameter::kNormWeight];
  const at::Tensor& bias = parameters[head_parameter::kNormBias];
  const at::Tensor& output = parameters[head_parameter::kOutput];
  const Normed normed = layer_norm(input, weight, bias);
  const at::Tensor rows = normed.output.flatten(0, 1);
  const at::Tensor ids = targets.flatten();
  at::Tensor grad_rows = at::empty_like(rows);
  at::Tensor sum = zero_sum(input);
  for_each_chunk(
      rows.size(0), chunk_rows(input.device()), [&](std::int64_t first, std::int64_t count) {
        const at::Tensor x = rows.narrow(0, first, count);
        at::Tensor logits = at::mm(x, output.t());
        const CrossEntropyOptions options = {.vocab = vocab_, .grad_scale = grad_scale};
        sum.add_(
            cross_entropy_in_place(logits, ids.narrow(0, first, count), options).sum(at::kDouble));
        at::Tensor grad_x = grad_rows.narrow(0, first, count);
        at::mm_out(grad_x, logits, output);
        accumulate_weight_gradient(gradients[head_parameter::kOutput], logits, x);
      });
  at::Tensor grad_input = layer_norm_backward(
      grad_rows.view(input.sizes()), input, normed, weight, bias,
      {gradients[head_parameter::kNormWeight], gradients[head_parameter::kNormBias]}, {});
  return {std::move(sum), std::move(grad_input)};
}

at::Tensor Gpt2Head::loss_sum(const UnitViews& parameters, const at::Tensor& input,
                              const at::Tensor& targets) const {
  const at::NoGradGuard no_grad;
  const at::Tensor& output = parameters[head_parameter::kOutput];
  const at::Tensor rows = layer_norm(input, parameters[head_parameter::kNormWeight],
                                     parameters[head_parameter::kNormBias])
                              .output.flatten(0, 1);
  const at::Tensor ids = targets.flatten();
  at::Tensor sum = zero_sum(input);
  for_each_chunk(
      rows.size(0), chunk_rows(input.device()), [&](std::int64_t first, std::int64_t count) {
        at::Tensor logits = at::mm(rows.narrow(0, first, count), output.t());
        const CrossEntropyOptions options = {.vocab = vocab_, .gradient = false};
        sum.add_(
            cross_entropy_in_place(logits, ids.narrow(0, first, count), options).sum(at::kDouble));
      });
  return sum;
}

at::Tensor Gpt2Head::logits(const UnitViews& parameters, const at::Tensor& input,
                            std::int64_t positions) const {
  const at::NoGradGuard no_grad;
  const at::Tensor last = input.narrow(1, input.size(1) - positions, positions).contiguous();
  const at::Tensor rows = layer_norm(last, parameters[head_parameter::kNormWeight],
                                     parameters[head_parameter::kNormBias])
                              .output.flatten(0, 1);
  return at::mm(rows, parameters[head_parameter::kOutput].t())
      .narrow(1, 0, vocab_)
      .reshape({input.size(0), positions, vocab_});
}

}  // namespace sluice::engine
