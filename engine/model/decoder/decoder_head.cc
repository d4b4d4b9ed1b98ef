#include "engine/model/decoder/decoder_head.h"

#include <ATen/core/LegacyTypeDispatch.h>

#include <utility>

#include "engine/model/decoder/decoder_layout.h"
#include "engine/model/op_costs.h"
#include "engine/model/ops/products.h"

namespace sluice::engine {

DecoderHead::DecoderHead(const DecoderSpec& spec, std::int64_t chunk_rows)
    : vocab_(spec.vocab),
      chunk_rows_(chunk_rows),
      logit_cap_(spec.logit_cap),
      output_(head_parameters(spec).output),
      norm_{.kind = spec.block.norm,
            .epsilon = spec.block.epsilon,
            .places = head_parameters(spec).norm} {}

std::int64_t DecoderHead::chunk_rows(at::Device device) const {
  return chunk_rows_ == 0 ? loss_chunk_rows(vocab_, device.is_cpu()) : chunk_rows_;
}

OutputLossOptions DecoderHead::loss_options(at::Device device, double grad_scale) const {
  return {.vocab = vocab_,
          .chunk_rows = chunk_rows(device),
          .soft_cap = logit_cap_,
          .grad_scale = grad_scale};
}

HeadUnit::Loss DecoderHead::loss_and_gradient(const UnitViews& parameters, const at::Tensor& input,
                                              const at::Tensor& targets, double grad_scale,
                                              const UnitViews& gradients) const {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  const Normed normed = norm_.normed(parameters, input);
  OutputLoss loss =
      output_loss_and_gradient(normed.output.flatten(0, 1), parameters[output_], targets.flatten(),
                               loss_options(input.device(), grad_scale), gradients[output_]);
  at::Tensor grad_input = norm_.backward(parameters, gradients, loss.grad_rows.view(input.sizes()),
                                         input, normed, /*residual=*/{});
  return {std::move(loss.sum), std::move(grad_input)};
}

at::Tensor DecoderHead::loss_sum(const UnitViews& parameters, const at::Tensor& input,
                                 const at::Tensor& targets) const {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  const at::Tensor rows = norm_.normed(parameters, input).output.flatten(0, 1);
  return output_loss(rows, parameters[output_], targets.flatten(), loss_options(input.device(), 1));
}

at::Tensor DecoderHead::token_losses(const UnitViews& parameters, const at::Tensor& input,
                                     const at::Tensor& targets) const {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  const at::Tensor rows = norm_.normed(parameters, input).output.flatten(0, 1);
  return output_losses(rows, parameters[output_], targets.flatten(),
                       loss_options(input.device(), 1))
      .view(targets.sizes());
}

at::Tensor DecoderHead::logits(const UnitViews& parameters, const at::Tensor& input,
                               std::int64_t positions) const {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  const at::Tensor last = input.narrow(1, input.size(1) - positions, positions).contiguous();
  const at::Tensor rows = norm_.normed(parameters, last).output.flatten(0, 1);
  at::Tensor made = product(rows, parameters[output_].t());
  cap_logits(made, logit_cap_);
  return made.narrow(1, 0, vocab_).reshape({input.size(0), positions, vocab_});
}

}  // namespace sluice::engine
