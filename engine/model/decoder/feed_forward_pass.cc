#include "engine/model/decoder/feed_forward_pass.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/sum.h>
#include <c10/core/ScalarType.h>

#include <utility>

#include "engine/model/ops/activate.h"
#include "engine/model/ops/bias_gradient.h"

namespace sluice::engine {

FeedForwardPass::Kept FeedForwardPass::kept_of(Normed normed, std::int64_t first_row) const {
  Kept kept;
  const BlockSpec& spec = pass_.spec;
  if (experts_) {
    kept.experts = experts_->middle(normed.output);
    if (pass_.context.routed != nullptr) ExpertsPass::count(kept.experts, *pass_.context.routed);
  }
  if (spec.has_dense()) kept.inner = in_from(first_row).output(normed.output);
  if (spec.experts.shared) kept.shared_logit = logit_from(first_row).output(normed.output);
  normed.output.reset();
  kept.norm = std::move(normed);
  return kept;
}

FeedForwardPass::Kept FeedForwardPass::begin(at::Tensor& middle, const at::Tensor& input) const {
  const Dropout dropout = pass_.residual_dropout(DropoutSite::kProjection);
  if (pass_.pieces.cut()) {
    add_residual(middle, input, dropout);
    return {};
  }
  return kept_of(norm_.add_and_norm(pass_.w, middle, input, dropout), 0);
}

at::Tensor FeedForwardPass::activated(const at::Tensor& inner) const {
  const MlpSpec& mlp = pass_.spec.mlp;
  return mlp.gated ? gated(inner, mlp.activation) : activate(inner, mlp.activation);
}

at::Tensor FeedForwardPass::output_of(Kept kept, std::int64_t first_row) const {
  at::Tensor output;
  if (experts_) output = experts_->output(kept.experts);
  if (pass_.spec.has_dense()) {
    const at::Tensor activation = activated(kept.inner);
    kept.inner.reset();
    const at::Tensor dense = out_from(first_row).output(activation);
    if (experts_)
      output.addcmul_(dense.view_as(output), at::sigmoid(kept.shared_logit.flatten(0, -2)));
    else
      output = dense;
  }
  if (!pass_.spec.norms_branches()) return output;
  return pass_.norm(pass_.places.branch_norms[1]).normed(pass_.w, output).output;
}

at::Tensor FeedForwardPass::finish(Kept kept, const at::Tensor& middle) const {
  at::Tensor output =
      pass_.pieces.cut() ? output_in_pieces(middle) : output_of(std::move(kept), 0).view_as(middle);
  add_residual(output, middle, pass_.residual_dropout(DropoutSite::kFcProjection));
  return output;
}

at::Tensor FeedForwardPass::output_in_pieces(const at::Tensor& middle) const {
  at::Tensor output = at::empty_like(middle);
  const at::Tensor from = middle.flatten(0, 1);
  const at::Tensor to = output.flatten(0, 1);
  pass_.pieces.for_each([&](std::int64_t first, std::int64_t rows) {
    Kept kept = kept_of(norm_.normed(pass_.w, from.narrow(0, first, rows)), first);
    to.narrow(0, first, rows).copy_(output_of(std::move(kept), first));
  });
  return output;
}

// In place: `inner` becomes its gradient, and the activation's gradient becomes the activation.
void FeedForwardPass::activated_backward(at::Tensor& inner, at::Tensor& gradient,
                                         const UnitViews& gradients) const {
  const MlpSpec& mlp = pass_.spec.mlp;
  if (mlp.gated) return gated_backward(inner, gradient, mlp.activation);
  activate_backward(inner, gradient, mlp.activation,
                    gradient_of(gradients, pass_.places.mlp_in.bias));
  std::swap(inner, gradient);
}

// Replaces the gradient of the branch by that of its last product, whose output is computed again.
void FeedForwardPass::norm_backward(Rows& rows, const at::Tensor& inner,
                                    const UnitViews& gradients) const {
  const at::Tensor output = out_from(rows.first).output(activated(inner));
  at::Tensor rstd = pass_.norm(pass_.places.branch_norms[1]).normed(pass_.w, output).rstd;
  rows.dropped = pass_.branch_norm_backward(1, rows.dropped.view_as(output), output,
                                            std::move(rstd), gradients);
}

// A product with the last matrix moves from one factor to the other: (W a) g = a (W^T g). So no
// output of a shared expert is needed.
at::Tensor FeedForwardPass::out_backward(const Rows& rows, const at::Tensor& grad_output,
                                         at::Tensor& inner, const UnitViews& gradients) const {
  const ProductsPass products = out_from(rows.first);
  const ProductsPass::Backward out(products, grad_output);
  at::Tensor activation = out.input_gradient();  // its gradient
  at::Tensor along;
  if (pass_.spec.experts.shared)
    along = at::sum(activated(inner).mul_(activation), {-1}, /*keepdim=*/true,
                    c10::promoteTypes(activation.scalar_type(), at::kFloat));
  activated_backward(inner, activation, gradients);
  if (pass_.spec.mlp.gated) out.put_biases(gradients);
  out.put_matrices(gradients, activation, overwrites(rows));
  return along;
}

at::Tensor FeedForwardPass::in_backward(const Rows& rows, const ProductsPass& products,
                                        const at::Tensor& grad_products, at::Tensor input,
                                        const UnitViews& gradients) const {
  const ProductsPass::Backward in(products, grad_products);
  if (pass_.spec.mlp.gated) in.put_biases(gradients);
  in.put_matrices(gradients, std::exchange(input, {}), overwrites(rows));
  return in.input_gradient();
}

at::Tensor FeedForwardPass::dense_backward(Rows& rows, at::Tensor inner,
                                           const UnitViews& gradients) const {
  if (pass_.spec.norms_branches()) norm_backward(rows, inner, gradients);
  out_backward(rows, rows.dropped, inner, gradients);
  rows.dropped.reset();
  return in_backward(rows, in_from(rows.first), inner, norm_.normed(pass_.w, rows.middle).output,
                     gradients);
}

void FeedForwardPass::shared_backward(const Rows& rows, Kept& kept, const at::Tensor& input,
                                      at::Tensor& grad_input, const UnitViews& gradients) const {
  const at::Tensor weight = at::sigmoid(kept.shared_logit);
  at::Tensor grad_logit = out_backward(rows, rows.dropped.mul(weight), kept.inner, gradients);
  grad_logit = grad_logit.mul_(weight.neg().add_(1)).to(weight.scalar_type());
  grad_input.add_(in_backward(rows, in_from(rows.first), kept.inner, input, gradients));
  grad_input.add_(in_backward(rows, logit_from(rows.first), grad_logit, input, gradients));
}

at::Tensor FeedForwardPass::experts_backward(Rows& rows, Kept& kept,
                                             const UnitViews& gradients) const {
  const at::Tensor input = norm_.normed(pass_.w, rows.middle).output;
  at::Tensor gradient =
      experts_->backward({.logits = std::exchange(kept.experts.logits, {}),
                          .gate_and_up = std::exchange(kept.experts.gate_and_up, {}),
                          .input = input,
                          .grad_output = rows.dropped,
                          .overwrite = overwrites(rows),
                          .balance_gradient = pass_.context.balance_gradient},
                         gradients);
  if (pass_.spec.experts.shared) shared_backward(rows, kept, input, gradient, gradients);
  rows.dropped.reset();
  return gradient;
}

at::Tensor FeedForwardPass::backward_of(Rows rows, Kept kept, const UnitViews& gradients) const {
  at::Tensor grad_normed = experts_ ? experts_backward(rows, kept, gradients)
                                    : dense_backward(rows, std::move(kept.inner), gradients);
  return norm_.backward(pass_.w, gradients, std::move(grad_normed), rows.middle, kept.norm,
                        rows.grad_output);
}

at::Tensor FeedForwardPass::backward(Kept kept, at::Tensor middle, const at::Tensor& grad_output,
                                     const UnitViews& gradients) const {
  const Dropout dropout = pass_.residual_dropout(DropoutSite::kFcProjection);
  // With a gate the last bias is summed piece by piece. Otherwise it is summed together with
  // dropout, over all rows.
  at::Tensor dropped = pass_.spec.mlp.gated
                           ? with_dropout(grad_output, dropout)
                           : drop_and_accumulate(grad_output, dropout,
                                                 gradient_of(gradients, pass_.places.mlp_out.bias));
  if (!pass_.pieces.cut())
    return backward_of(
        {.middle = middle, .grad_output = grad_output, .dropped = std::move(dropped)},
        std::move(kept), gradients);
  const auto rows_of = [](const at::Tensor& all, std::int64_t first, std::int64_t rows) {
    return all.flatten(0, 1).narrow(0, first, rows);
  };
  pass_.pieces.for_each([&](std::int64_t first, std::int64_t rows) {
    const at::Tensor some = rows_of(middle, first, rows);
    some.copy_(backward_of({.middle = some,
                            .grad_output = rows_of(grad_output, first, rows),
                            .dropped = rows_of(dropped, first, rows),
                            .first = first},
                           kept_of(norm_.normed(pass_.w, some), first), gradients));
  });
  return middle;
}

}  // namespace sluice::engine
