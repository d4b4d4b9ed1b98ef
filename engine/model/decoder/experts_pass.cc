#include "engine/model/decoder/experts_pass.h"

#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>

#include <cstddef>
#include <utility>
#include <vector>

#include "engine/model/ops/activate.h"
#include "engine/model/ops/bias_gradient.h"
#include "engine/model/ops/linear.h"
#include "engine/model/ops/products.h"

namespace sluice::engine {
namespace {

constexpr int kInParts = 2;

ExpertMatrices matrices(const UnitViews& views, int first, std::int64_t experts, int parts) {
  std::vector<at::Tensor> all;
  const int count = static_cast<int>(experts) * parts;
  all.reserve(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) all.push_back(views[first + i]);
  return {std::move(all), parts};
}

// An expert's gate and up alternate in the parameter; here all of its gate come first.
at::Tensor gate_first(const at::Tensor& biases) {
  return biases.unflatten(1, {-1, kInParts}).transpose(1, 2).flatten(1);
}

}  // namespace

at::Tensor ExpertsPass::gated(const at::Tensor& gate_and_up) const {
  return spec_.gate.exists() ? clamped_gated(gate_and_up, spec_.gate)
                             : engine::gated(gate_and_up, Activation::kSilu);
}

RoutingRule ExpertsPass::rule() const {
  return {.per_token = spec_.per_token,
          .renormalises = spec_.renormalises,
          .fp32_weights = spec_.fp32_weights};
}

ExpertMatrices ExpertsPass::matrices_in(const UnitViews& views) const {
  return matrices(views, places_.expert_in, spec_.count, kInParts);
}

ExpertMatrices ExpertsPass::matrices_out(const UnitViews& views) const {
  return matrices(views, places_.expert_out, spec_.count, 1);
}

ExpertsPass::Middle ExpertsPass::middle(const at::Tensor& input) const {
  const at::Tensor tokens = input.flatten(0, -2);
  const at::Tensor bias = spec_.bias ? w_[places_.router_bias] : at::Tensor();
  Middle middle = {.logits = linear(tokens, w_[places_.router], bias, WeightOrder::kOutIn),
                   .gate_and_up = {}};
  middle.routing = route(middle.logits, rule());
  middle.rows.emplace(middle.routing->chosen, spec_.count);
  middle.gate_and_up =
      expert_products(middle.rows->gathered(tokens), matrices_in(w_), *middle.rows);
  if (spec_.bias)
    add_product(middle.gate_and_up, middle.rows->marks(middle.routing->chosen, tokens),
                gate_first(w_[places_.expert_in_bias]));
  return middle;
}

void ExpertsPass::count(const Middle& middle, const RoutedTokens& to) {
  middle.rows->add_counts_to(to.rows);
  if (!to.chosen.defined()) return;
  middle.rows->add_counts_to(to.chosen);
  to.probabilities.add_(
      at::sum(middle.routing->probabilities, {0}, /*keepdim=*/false, at::kDouble));
}

at::Tensor ExpertsPass::output(Middle& middle) const {
  at::Tensor product = gated(middle.gate_and_up);
  middle.gate_and_up.reset();
  product = expert_products(product, matrices_out(w_), *middle.rows);
  at::Tensor sum = middle.rows->summed(product, middle.routing->weights);
  if (spec_.bias) add_product(sum, all_weights(*middle.routing, sum), w_[places_.expert_out_bias]);
  return sum;
}

// A weight's gradient is the product of an expert's output with the output's gradient. Their
// products with the last matrix are equal: a (W^T g) = (W a) g. So no expert's output is needed.
at::Tensor ExpertsPass::gated_backward(Backward& pass, const Routing& routing,
                                       const ExpertRows& rows, const UnitViews& gradients) const {
  const at::Tensor weights = rows.gathered_weights(routing.weights);
  const at::Tensor grad_rows = rows.gathered(pass.grad_output.flatten(0, -2));
  at::Tensor product = expert_input_gradient(grad_rows, matrices_out(w_), rows);  // its gradient
  const at::Tensor of_rows = at::sum(gated(pass.gate_and_up).mul_(product), {-1},
                                     /*keepdim=*/false, weights.scalar_type());
  product.mul_(weights);
  if (spec_.gate.exists())
    clamped_gated_backward(pass.gate_and_up, product, spec_.gate);
  else
    // Now the gradient, and the product.
    engine::gated_backward(pass.gate_and_up, product, Activation::kSilu);
  const ExpertMatrices sums = matrices_out(gradients);
  if (sums.defined())
    put_expert_gradients(sums, grad_rows, product.mul_(weights), rows, pass.overwrite);
  return rows.by_token(of_rows);
}

void ExpertsPass::biases_backward(const Backward& pass, const Routing& routing,
                                  const ExpertRows& rows, at::Tensor& grad_weights,
                                  const UnitViews& gradients) const {
  const at::Tensor grad_tokens = pass.grad_output.flatten(0, -2);
  grad_weights.add_(
      product(grad_tokens, w_[places_.expert_out_bias].t()).gather(-1, routing.chosen));
  if (const at::Tensor& sum = gradients[places_.expert_out_bias]; sum.defined())
    accumulate_weight_gradient(sum, all_weights(routing, grad_tokens), grad_tokens);
  if (const at::Tensor& sum = gradients[places_.expert_in_bias]; sum.defined()) {
    const at::Tensor of_halves = at::zeros(sum.sizes(), sum.options());
    accumulate_weight_gradient(of_halves, rows.marks(routing.chosen, grad_tokens),
                               pass.gate_and_up);
    sum.add_(of_halves.unflatten(1, {kInParts, -1}).transpose(1, 2).flatten(1));
  }
}

at::Tensor ExpertsPass::backward(Backward pass, const UnitViews& gradients) const {
  const Routing routing = route(pass.logits, rule());
  const ExpertRows rows(routing.chosen, spec_.count);
  at::Tensor grad_weights = gated_backward(pass, routing, rows, gradients);
  if (spec_.bias) biases_backward(pass, routing, rows, grad_weights, gradients);
  const at::Tensor grad_logits =
      route_backward(routing, rule(), grad_weights, pass.logits.scalar_type(),
                     pass.balance_gradient == nullptr ? at::Tensor() : *pass.balance_gradient);
  at::Tensor gradient = rows.summed(expert_input_gradient(pass.gate_and_up, matrices_in(w_), rows));
  add_product(gradient, grad_logits, w_[places_.router]);
  const at::Tensor tokens = pass.input.flatten(0, -2);
  const ExpertMatrices sums = matrices_in(gradients);
  if (sums.defined())
    put_expert_gradients(sums, pass.gate_and_up, rows.gathered(tokens), rows, pass.overwrite);
  if (const at::Tensor& sum = gradients[places_.router]; sum.defined()) {
    const auto put = pass.overwrite ? &write_weight_gradient : &accumulate_weight_gradient;
    put(sum, grad_logits, tokens);
  }
  if (spec_.bias) accumulate_bias_gradient(gradients[places_.router_bias], grad_logits);
  return gradient.view(pass.input.sizes());
}

}  // namespace sluice::engine
