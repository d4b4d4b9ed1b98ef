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

ExpertsPass::ExpertsPass(const ExpertsSpec& spec, const BlockParameters& places,
                         const UnitViews& parameters, double adapter_scale)
    : spec_(spec), places_(places), w_(parameters) {
  const int first = places.expert_adapters;
  if (first == kNoParameter) return;
  const ExpertAdapters::Form form = {.experts = spec.count, .scale = adapter_scale};
  ExpertAdapters::Form joined = form;
  joined.in_turn = spec.in_turn;
  adapters_in_.emplace(w_[first], w_[first + 1], joined);
  adapters_out_.emplace(w_[first + 2], w_[first + 3], form);
}

at::Tensor ExpertsPass::gated(const at::Tensor& gate_and_up) const {
  return spec_.gate.exists() ? clamped_gated(gate_and_up, spec_.gate)
                             : engine::gated(gate_and_up, Activation::kSilu);
}

// `first`: 0 for those of gate and up, 2 for down.
ExpertAdapters::Gradients ExpertsPass::adapter_gradients(const UnitViews& gradients, int first,
                                                         bool overwrite) const {
  const int place = places_.expert_adapters + first;
  return {.a = gradients[place], .b = gradients[place + 1], .overwrite = overwrite};
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
  at::Tensor gathered = middle.rows->gathered(tokens);
  middle.gate_and_up = expert_products(gathered, matrices_in(w_), *middle.rows);
  if (adapters_in_) adapters_in_->add_to(middle.gate_and_up, gathered, *middle.rows);
  gathered.reset();
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
  at::Tensor activation = gated(middle.gate_and_up);
  middle.gate_and_up.reset();
  const at::Tensor product = expert_products(activation, matrices_out(w_), *middle.rows);
  if (adapters_out_) adapters_out_->add_to(product, activation, *middle.rows);
  activation.reset();
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
  at::Tensor inner;
  if (adapters_out_) {
    inner = adapters_out_->inner_gradient(grad_rows, rows);
    adapters_out_->add_input_gradient(product, inner, rows);
  }
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
  if (adapters_out_)
    adapters_out_->put_gradients(adapter_gradients(gradients, 2, pass.overwrite), inner, grad_rows,
                                 product.mul_(weights), rows);
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
  at::Tensor of_rows = expert_input_gradient(pass.gate_and_up, matrices_in(w_), rows);
  at::Tensor inner;
  if (adapters_in_) {
    inner = adapters_in_->inner_gradient(pass.gate_and_up, rows);
    adapters_in_->add_input_gradient(of_rows, inner, rows);
  }
  at::Tensor gradient = rows.summed(of_rows);
  of_rows.reset();
  add_product(gradient, grad_logits, w_[places_.router]);
  const at::Tensor tokens = pass.input.flatten(0, -2);
  const ExpertMatrices sums = matrices_in(gradients);
  if (sums.defined())
    put_expert_gradients(sums, pass.gate_and_up, rows.gathered(tokens), rows, pass.overwrite);
  if (adapters_in_)
    adapters_in_->put_gradients(adapter_gradients(gradients, 0, pass.overwrite), inner,
                                pass.gate_and_up, rows.gathered(tokens), rows);
  if (const at::Tensor& sum = gradients[places_.router]; sum.defined()) {
    const auto put = pass.overwrite ? &write_weight_gradient : &accumulate_weight_gradient;
    put(sum, grad_logits, tokens);
  }
  if (spec_.bias) accumulate_bias_gradient(gradients[places_.router_bias], grad_logits);
  return gradient.view(pass.input.sizes());
}

}  // namespace sluice::engine
