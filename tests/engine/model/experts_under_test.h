// A feed-forward of experts with its parameters and gradients in memory, and the same computed by
// LibTorch's autograd in fp64: each expert on every token, times its weight or zero.
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/clamp_max.h>
#include <ATen/ops/full.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "engine/model/decoder/decoder_layout.h"
#include "engine/model/decoder/experts_pass.h"
#include "engine/model/model_unit.h"
#include "tests/engine/model/specs.h"

namespace sluice::engine {

struct ExpertsCase {
  std::string name;
  std::int64_t tokens = 1;
  std::int64_t hidden = 1;
  ExpertsSpec spec = {};
};

// Computed by counting: the k most probable experts of each token, lower numbers first if equal.
inline at::Tensor chosen_of(const at::Tensor& logits, std::int64_t per_token) {
  const at::Tensor host = logits.detach().cpu().to(at::kDouble).contiguous();
  const at::Tensor chosen = at::zeros({host.size(0), per_token}, at::kLong);
  const auto experts = host.size(1);
  for (std::int64_t token = 0; token < host.size(0); ++token) {
    const double* const of_token = host.const_data_ptr<double>() + token * experts;
    for (std::int64_t expert = 0; expert < experts; ++expert) {
      std::int64_t before = 0;
      for (std::int64_t other = 0; other < experts; ++other)
        before += of_token[other] > of_token[expert] ||
                          (of_token[other] == of_token[expert] && other < expert)
                      ? 1
                      : 0;
      if (before < per_token) chosen[token][before] = expert;
    }
  }
  return chosen;
}

class ExpertsUnderTest {
 public:
  ExpertsUnderTest(const ExpertsCase& which, const at::TensorOptions& options)
      : case_(which),
        block_({.hidden = which.hidden,
                .norm = NormKind::kRms,
                .attention = {.heads = 1, .kv_heads = 1, .head_dim = 2},
                .experts = which.spec,
                .names = names()}),
        layout_(block_layout(block_, 0)),
        places_(block_parameters(block_)),
        options_(options) {
    at::manual_seed(23);
    const auto elements = static_cast<std::int64_t>(layout_.slot_elements);
    flat_ = at::randn({elements}, at::kDouble).mul_(0.4).to(options);
    const bool is_double = options.dtype() == at::kDouble;
    gradient_ = at::zeros({elements}, options.dtype(is_double ? at::kDouble : at::kFloat));
    parameters_ = UnitViews(layout_, flat_);
    gradients_ = UnitViews(layout_, gradient_);
    input_ = at::randn({which.tokens, which.hidden}, at::kDouble).to(options);
    grad_output_ = at::randn({which.tokens, which.hidden}, at::kDouble).to(options);
  }

  ExpertsPass pass() const { return {case_.spec, places_, parameters_}; }
  const BlockParameters& places() const { return places_; }
  const UnitViews& parameters() const { return parameters_; }
  const UnitViews& gradients() const { return gradients_; }
  const at::Tensor& flat_gradient() const { return gradient_; }
  const at::Tensor& input() const { return input_; }
  const at::Tensor& grad_output() const { return grad_output_; }

  // Gives every matrix memory of its own, so that no view has them all.
  void scatter() {
    UnitViews apart;
    UnitViews gradients;
    for (int i = 0; i < parameters_.size(); ++i) {
      apart.append(parameters_[i].clone());
      gradients.append(gradients_[i].clone());
    }
    parameters_ = std::move(apart);
    gradients_ = std::move(gradients);
  }

  struct Result {
    at::Tensor logits;
    at::Tensor output;
    at::Tensor grad_input;
  };
  Result run(bool overwrite = false) const { return run_with(gradients_, overwrite); }
  Result run_with(const UnitViews& gradients, bool overwrite = false) const {
    ExpertsPass::Middle middle = pass().middle(input_);
    Result result;
    result.logits = middle.logits;
    const at::Tensor gate_and_up = middle.gate_and_up.clone();
    result.output = pass().output(middle);
    result.grad_input = pass().backward({.logits = middle.logits,
                                         .gate_and_up = gate_and_up,
                                         .input = input_,
                                         .grad_output = grad_output_,
                                         .overwrite = overwrite},
                                        gradients);
    return result;
  }

  // The places of the router and of all matrices of experts.
  std::vector<int> matrices() const {
    std::vector<int> all = {places_.router};
    const int experts = static_cast<int>(case_.spec.count);
    for (int i = 0; i < 2 * experts; ++i) all.push_back(places_.expert_in + i);
    for (int i = 0; i < experts; ++i) all.push_back(places_.expert_out + i);
    return all;
  }
  // The same, and the biases of the router and of the experts' products.
  std::vector<int> trained() const {
    std::vector<int> all = matrices();
    if (case_.spec.bias)
      for (const int place : {places_.router_bias, places_.expert_in_bias, places_.expert_out_bias})
        all.push_back(place);
    return all;
  }

  struct Expected {
    at::Tensor output;
    at::Tensor grad_input;
    std::vector<at::Tensor> gradients;  // in the order of trained()
  };
  // With these experts for each token, int64 [T, k].
  Expected expected(const at::Tensor& chosen) const {
    const auto leaf = [](const at::Tensor& tensor) {
      return tensor.detach().cpu().to(at::kDouble).clone().requires_grad_(true);
    };
    std::vector<at::Tensor> leaves;
    for (const int place : trained()) leaves.push_back(leaf(parameters_[place]));
    const at::Tensor x = leaf(input_);
    const bool bias = case_.spec.bias;
    at::Tensor logits = at::matmul(x, leaves[0].t());
    if (bias) logits = logits + leaves[leaves.size() - 3];
    const at::Tensor probabilities = at::softmax(logits, -1);
    at::Tensor weights = probabilities.gather(1, chosen);
    if (case_.spec.renormalises) weights = weights / weights.sum(1, /*keepdim=*/true);
    at::Tensor output = at::zeros_like(x);
    for (std::int64_t e = 0; e < case_.spec.count; ++e) {
      const auto in = static_cast<std::size_t>(1 + 2 * e);
      const auto out = static_cast<std::size_t>(1 + 2 * case_.spec.count + e);
      at::Tensor gate = at::matmul(x, leaves[in].t());
      at::Tensor up = at::matmul(x, leaves[in + 1].t());
      if (bias) {
        const at::Tensor pairs = leaves[leaves.size() - 2][e].view({-1, 2});
        gate = gate + pairs.select(1, 0);
        up = up + pairs.select(1, 1);
      }
      at::Tensor made = at::matmul(gated(gate, up), leaves[out].t());
      if (bias) made = made + leaves.back()[e];
      const at::Tensor weight = (weights * chosen.eq(e)).sum(1, /*keepdim=*/true);
      output = output + made * weight;
    }
    (output * grad_output_.cpu().to(at::kDouble)).sum().backward();
    Expected expected = {.output = output.detach(), .grad_input = x.grad(), .gradients = {}};
    for (const at::Tensor& made : leaves)
      expected.gradients.push_back(made.grad().defined() ? made.grad() : at::zeros_like(made));
    return expected;
  }

 private:
  static BlockNames names() {
    BlockNames names = spec_of({.layers = 1,
                                .hidden = 8,
                                .heads = 1,
                                .context_tokens = 8,
                                .vocab = 8,
                                .family = "llama",
                                .numbers = {{"architecture", architecture("qwen3_moe")}}})
                           .block.names;
    names.expert_biases = {"experts.in_bias", "experts.out_bias"};
    return names;
  }
  at::Tensor gated(const at::Tensor& gate, const at::Tensor& up) const {
    const ClampedGate& rule = case_.spec.gate;
    if (!rule.exists()) return at::silu(gate) * up;
    const at::Tensor limited = at::clamp_max(gate, rule.limit);
    return limited * at::sigmoid(limited * rule.alpha) *
           (at::clamp(up, -rule.limit, rule.limit) + 1);
  }

  ExpertsCase case_;
  BlockSpec block_;
  UnitLayout layout_;
  BlockParameters places_;
  at::TensorOptions options_;
  at::Tensor flat_;
  at::Tensor gradient_;
  UnitViews parameters_;
  UnitViews gradients_;
  at::Tensor input_;
  at::Tensor grad_output_;
};

}  // namespace sluice::engine
