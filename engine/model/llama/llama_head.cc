#include "engine/model/llama/llama_head.h"

#include <ATen/core/LegacyTypeDispatch.h>

#include <utility>

#include "engine/model/op_costs.h"
#include "engine/model/ops/products.h"
#include "engine/model/ops/rms_norm.h"

namespace sluice::engine {

LlamaHead::LlamaHead(const LlamaShape& shape, std::int64_t chunk_rows)
    : vocab_(shape.vocab),
      chunk_rows_(chunk_rows),
      epsilon_(shape.epsilon),
      indices_(head_parameters(llama_spec(shape))) {}

OutputLossOptions LlamaHead::loss_options(at::Device device, double grad_scale) const {
  return {.vocab = vocab_,
          .chunk_rows = chunk_rows_ == 0 ? loss_chunk_rows(vocab_, device.is_cpu()) : chunk_rows_,
          .grad_scale = grad_scale};
}

HeadUnit::Loss LlamaHead::loss_and_gradient(const UnitViews& parameters, const at::Tensor& input,
                                            const at::Tensor& targets, double grad_scale,
                                            const UnitViews& gradients) const {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  const at::Tensor& weight = parameters[indices_.norm.gain];
  const RmsNormed normed = rms_norm(input, weight, epsilon_);
  OutputLoss loss = output_loss_and_gradient(
      normed.output.flatten(0, 1), parameters[indices_.output], targets.flatten(),
      loss_options(input.device(), grad_scale), gradients[indices_.output]);
  at::Tensor grad_input = rms_norm_backward(loss.grad_rows.view(input.sizes()), input, normed.rstd,
                                            weight, gradients[indices_.norm.gain], {});
  return {std::move(loss.sum), std::move(grad_input)};
}

at::Tensor LlamaHead::loss_sum(const UnitViews& parameters, const at::Tensor& input,
                               const at::Tensor& targets) const {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  const at::Tensor rows =
      rms_norm(input, parameters[indices_.norm.gain], epsilon_).output.flatten(0, 1);
  return output_loss(rows, parameters[indices_.output], targets.flatten(),
                     loss_options(input.device(), 1));
}

at::Tensor LlamaHead::token_losses(const UnitViews& parameters, const at::Tensor& input,
                                   const at::Tensor& targets) const {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  const at::Tensor rows =
      rms_norm(input, parameters[indices_.norm.gain], epsilon_).output.flatten(0, 1);
  return output_losses(rows, parameters[indices_.output], targets.flatten(),
                       loss_options(input.device(), 1))
      .view(targets.sizes());
}

at::Tensor LlamaHead::logits(const UnitViews& parameters, const at::Tensor& input,
                             std::int64_t positions) const {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  const at::Tensor last = input.narrow(1, input.size(1) - positions, positions).contiguous();
  const at::Tensor rows =
      rms_norm(last, parameters[indices_.norm.gain], epsilon_).output.flatten(0, 1);
  return product(rows, parameters[indices_.output].t())
      .narrow(1, 0, vocab_)
      .reshape({input.size(0), positions, vocab_});
}

}  // namespace sluice::engine
