#include "engine/model/decoder/delta_pass.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/sigmoid_backward.h>

#include <utility>

#include "engine/model/kv_cache.h"
#include "engine/model/ops/causal_conv.h"
#include "engine/model/ops/gated_norm.h"

namespace sluice::engine {

DeltaPass::DeltaPass(const BlockPass& pass, const at::Tensor& input, std::int64_t layer)
    : pass_(pass),
      heads_(pass.spec.delta.heads),
      input_(input),
      layer_(layer),
      norm_(pass.norm(pass.places.norm1)),
      products_(pass.products(pass.places.qkv)),
      projection_(pass.products(pass.places.projection)) {}

DeltaPass::Columns DeltaPass::columns(const at::Tensor& products) const {
  std::int64_t first = 0;
  const auto next = [&](std::int64_t width) {
    return products.narrow(-1, std::exchange(first, first + width), width);
  };
  Columns made;
  made.qkv = next(heads_.qkv_width());
  made.gate = next(heads_.value_width());
  made.rate = next(heads_.value_heads);
  made.decay = next(heads_.value_heads);
  return made;
}

at::Tensor DeltaPass::rate(const Columns& columns) const {
  const at::Tensor rate = at::sigmoid(columns.rate);
  return rate.scalar_type() == at::kDouble ? rate : rate.to(at::kFloat);
}

DecayParameters DeltaPass::decay_parameters(const UnitViews& of) const {
  return {.log_rate = of[pass_.places.decay_bias + 1], .bias = of[pass_.places.decay_bias]};
}

at::Tensor DeltaPass::decay(const Columns& columns) const {
  return delta_decay(columns.decay, decay_parameters(pass_.w));
}

at::Tensor DeltaPass::gated(const at::Tensor& output, const Columns& columns) const {
  return gated_rms_norm(output, columns.gate, pass_.w[pass_.places.gated_norm], pass_.spec.epsilon);
}

at::Tensor DeltaPass::normed_products(Kept& kept) const {
  Normed normed = norm_.normed(pass_.w, input_);
  at::Tensor products = products_.output(normed.output);
  normed.output.reset();
  kept.norm = std::move(normed);
  return products;
}

at::Tensor DeltaPass::forward(Kept& kept, bool keep) const {
  at::Tensor products = normed_products(kept);
  const Columns from = columns(products);
  at::Tensor output;
  {
    const at::Tensor qkv =
        causal_conv_silu(from.qkv, pass_.w[pass_.places.convolution], pass_.context.documents);
    output = gated_delta_rule({.qkv = qkv, .decay = decay(from), .rate = rate(from)}, heads_,
                              pass_.context.documents);
  }
  const at::Tensor branch = gated(output, from);
  if (keep) {
    kept.qkv = std::move(products);
    kept.attended.output = std::move(output);
  }
  return projection_.output(branch);
}

at::Tensor DeltaPass::extend(KvCache& cache) const {
  Kept unused;
  const at::Tensor products = normed_products(unused);
  const Columns from = columns(products);
  const std::int64_t tokens = input_.size(1);
  const KvCache::State& state = cache.extend_state(layer_, tokens);
  const std::int64_t before = state.inputs.size(1);
  const at::Tensor inputs = at::cat({state.inputs, from.qkv}, 1);
  const at::Tensor qkv =
      causal_conv_silu(inputs, pass_.w[pass_.places.convolution], /*documents=*/nullptr)
          .narrow(1, before, tokens);
  state.inputs.copy_(inputs.narrow(1, tokens, before));
  const at::Tensor output = gated_delta_rule_after(
      state.heads, {.qkv = qkv, .decay = decay(from), .rate = rate(from)}, heads_);
  return projection_.output(gated(output, from));
}

// The gradient of the rule's output. Puts that of the gate into `columns`.
at::Tensor DeltaPass::output_gradient(const Kept& kept, const Columns& columns,
                                      const at::Tensor& grad_middle,
                                      const UnitViews& gradients) const {
  const at::Tensor& output = kept.attended.output;
  const Columns from = this->columns(kept.qkv);
  at::Tensor gradient;
  {
    const at::Tensor dropped =
        with_dropout(grad_middle, pass_.residual_dropout(DropoutSite::kProjection));
    const ProductsPass::Backward projection(projection_, dropped);
    projection.put_matrices(gradients, gated(output, from), pass_.context.overwrites);
    gradient = projection.input_gradient();
  }
  gated_rms_norm_backward(gradient, output, from.gate, pass_.w[pass_.places.gated_norm],
                          pass_.spec.epsilon, columns.gate, gradients[pass_.places.gated_norm]);
  return gradient;
}

at::Tensor DeltaPass::backward(Kept kept, const at::Tensor& grad_middle,
                               const UnitViews& gradients) const {
  const Documents* const documents = pass_.context.documents;
  const at::Tensor& weight = pass_.w[pass_.places.convolution];
  const Columns from = columns(kept.qkv);
  const at::Tensor gradient = at::empty_like(kept.qkv);
  const Columns to = columns(gradient);
  {
    at::Tensor grad_output = output_gradient(kept, to, grad_middle, gradients);
    kept.attended.output.reset();
    const at::Tensor decays = decay(from);
    const at::Tensor rates = rate(from);
    DeltaGradients made;
    {
      const at::Tensor qkv = causal_conv_silu(from.qkv, weight, documents);
      made = gated_delta_rule_backward(grad_output, {.qkv = qkv, .decay = decays, .rate = rates},
                                       heads_, documents);
    }
    grad_output.reset();
    causal_conv_silu_backward(made.qkv, from.qkv, weight, documents, to.qkv,
                              gradients[pass_.places.convolution]);
    to.rate.copy_(at::sigmoid_backward(made.rate, rates));
    to.decay.copy_(delta_decay_backward(made.decay, decays, from.decay, decay_parameters(pass_.w),
                                        decay_parameters(gradients)));
  }
  kept.qkv.reset();
  at::Tensor grad_norm;
  {
    const ProductsPass::Backward products(products_, gradient);
    products.put_matrices(gradients, norm_.normed(pass_.w, input_).output,
                          pass_.context.overwrites);
    grad_norm = products.input_gradient();
  }
  return norm_.backward(pass_.w, gradients, std::move(grad_norm), input_, kept.norm, grad_middle);
}

}  // namespace sluice::engine
