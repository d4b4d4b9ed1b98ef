#include "engine/model/gpt2/gpt2_head.h"

#include <ATen/core/LegacyTypeDispatch.h>

#include <utility>

#include "engine/model/gpt2/gpt2_shape.h"
#include "engine/model/op_costs.h"
#include "engine/model/ops/products.h"

namespace sluice::engine {

Gpt2Head::Gpt2Head(const ModelShape& shape, std::int64_t chunk_rows)
    : vocab_(shape.vocab),
      chunk_rows_(chunk_rows),
      epsilon_(gpt2_variant(shape).epsilon),
      indices_(head_parameters(gpt2_spec(shape))) {}

std::int64_t Gpt2Head::chunk_rows(at::Device device) const {
  return chunk_rows_ == 0 ? loss_chunk_rows(vocab_, device.is_cpu()) : chunk_rows_;
}

OutputLossOptions Gpt2Head::loss_options(at::Device device, double grad_scale) const {
  return {.vocab = vocab_, .chunk_rows = chunk_rows(device), .grad_scale = grad_scale};
}

Normed Gpt2Head::norm(const UnitViews& parameters, const at::Tensor& input) const {
  return layer_norm(input, parameters[indices_.norm.gain], parameters[indices_.norm.bias],
                    epsilon_);
}

HeadUnit::Loss Gpt2Head::loss_and_gradient(const UnitViews& parameters, const at::Tensor& input,
                                           const at::Tensor& targets, double grad_scale,
                                           const UnitViews& gradients) const {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  const Normed normed = norm(parameters, input);
  OutputLoss loss = output_loss_and_gradient(
      normed.output.flatten(0, 1), parameters[indices_.output], targets.flatten(),
      loss_options(input.device(), grad_scale), gradients[indices_.output]);
  at::Tensor grad_input =
      layer_norm_backward(loss.grad_rows.view(input.sizes()), input, normed,
                          parameters[indices_.norm.gain], parameters[indices_.norm.bias],
                          {gradients[indices_.norm.gain], gradients[indices_.norm.bias]}, {});
  return {std::move(loss.sum), std::move(grad_input)};
}

at::Tensor Gpt2Head::loss_sum(const UnitViews& parameters, const at::Tensor& input,
                              const at::Tensor& targets) const {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  const at::Tensor rows = norm(parameters, input).output.flatten(0, 1);
  return output_loss(rows, parameters[indices_.output], targets.flatten(),
                     loss_options(input.device(), 1));
}

at::Tensor Gpt2Head::token_losses(const UnitViews& parameters, const at::Tensor& input,
                                  const at::Tensor& targets) const {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  const at::Tensor rows = norm(parameters, input).output.flatten(0, 1);
  return output_losses(rows, parameters[indices_.output], targets.flatten(),
                       loss_options(input.device(), 1))
      .view(targets.sizes());
}

at::Tensor Gpt2Head::logits(const UnitViews& parameters, const at::Tensor& input,
                            std::int64_t positions) const {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  const at::Tensor last = input.narrow(1, input.size(1) - positions, positions).contiguous();
  const at::Tensor rows = norm(parameters, last).output.flatten(0, 1);
  return product(rows, parameters[indices_.output].t())
      .narrow(1, 0, vocab_)
      .reshape({input.size(0), positions, vocab_});
}

}  // namespace sluice::engine
