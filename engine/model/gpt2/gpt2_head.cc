#include "engine/model/gpt2/gpt2_head.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/mm.h>

#include <utility>

#include "engine/model/gpt2/gpt2_layout.h"
#include "engine/model/op_costs.h"
#include "engine/model/ops/layer_norm.h"

namespace sluice::engine {

Gpt2Head::Gpt2Head(const ModelShape& shape, std::int64_t chunk_rows)
    : vocab_(shape.vocab), chunk_rows_(chunk_rows) {}

std::int64_t Gpt2Head::chunk_rows(at::Device device) const {
  return chunk_rows_ == 0 ? loss_chunk_rows(vocab_, device.is_cpu()) : chunk_rows_;
}

OutputLossOptions Gpt2Head::loss_options(at::Device device, double grad_scale) const {
  return {.vocab = vocab_, .chunk_rows = chunk_rows(device), .grad_scale = grad_scale};
}

HeadUnit::Loss Gpt2Head::loss_and_gradient(const UnitViews& parameters, const at::Tensor& input,
                                           const at::Tensor& targets, double grad_scale,
                                           const UnitViews& gradients) const {
  const at::NoGradGuard no_grad;
  const at::Tensor& weight = parameters[head_parameter::kNormWeight];
  const at::Tensor& bias = parameters[head_parameter::kNormBias];
  const at::Tensor& output = parameters[head_parameter::kOutput];
  const Normed normed = layer_norm(input, weight, bias);
  OutputLoss loss = output_loss_and_gradient(normed.output.flatten(0, 1), output, targets.flatten(),
                                             loss_options(input.device(), grad_scale),
                                             gradients[head_parameter::kOutput]);
  at::Tensor grad_input = layer_norm_backward(
      loss.grad_rows.view(input.sizes()), input, normed, weight, bias,
      {gradients[head_parameter::kNormWeight], gradients[head_parameter::kNormBias]}, {});
  return {std::move(loss.sum), std::move(grad_input)};
}

at::Tensor Gpt2Head::loss_sum(const UnitViews& parameters, const at::Tensor& input,
                              const at::Tensor& targets) const {
  const at::NoGradGuard no_grad;
  const at::Tensor rows = layer_norm(input, parameters[head_parameter::kNormWeight],
                                     parameters[head_parameter::kNormBias])
                              .output.flatten(0, 1);
  return output_loss(rows, parameters[head_parameter::kOutput], targets.flatten(),
                     loss_options(input.device(), 1));
}

at::Tensor Gpt2Head::token_losses(const UnitViews& parameters, const at::Tensor& input,
                                  const at::Tensor& targets) const {
  const at::NoGradGuard no_grad;
  const at::Tensor rows = layer_norm(input, parameters[head_parameter::kNormWeight],
                                     parameters[head_parameter::kNormBias])
                              .output.flatten(0, 1);
  return output_losses(rows, parameters[head_parameter::kOutput], targets.flatten(),
                       loss_options(input.device(), 1))
      .view(targets.sizes());
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
