#include "engine/model/ops/activate.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/silu_backward.h>
#include <ATen/ops/threshold_backward.h>

#include "engine/model/ops/bias_gradient.h"
#include "engine/model/ops/fused_kernels.h"

namespace sluice::engine {
namespace {

constexpr const char* kTanh = "tanh";
constexpr const char* kErf = "none";

const char* form_of(Activation gelu) { return gelu == Activation::kGeluTanh ? kTanh : kErf; }

}  // namespace

at::Tensor activate(const at::Tensor& input, Activation activation) {
  if (cuda_fuses(input)) return fused_activation(input, activation);
  switch (activation) {
    case Activation::kRelu:
      return at::relu(input);
    case Activation::kSilu:
      return at::silu(input);
    case Activation::kGeluTanh:
    case Activation::kGelu:
      break;
  }
  return at::gelu(input, form_of(activation));
}

void activate_backward(at::Tensor& input, at::Tensor& gradient, Activation activation,
                       const at::Tensor& bias_gradient) {
  if (cuda_fuses(input) && cuda_fuses(gradient))
    return fused_activation_backward(input, gradient, activation, bias_gradient);
  switch (activation) {
    case Activation::kRelu:
      at::threshold_backward_out(gradient, gradient, input, 0);
      at::relu_(input);
      break;
    case Activation::kSilu:
      at::silu_backward_out(gradient, gradient, input);
      at::silu_(input);
      break;
    case Activation::kGeluTanh:
    case Activation::kGelu:
      at::gelu_backward_out(gradient, gradient, input, form_of(activation));
      at::gelu_(input, form_of(activation));
      break;
  }
  accumulate_bias_gradient(bias_gradient, gradient);
}

at::Tensor clamped_gated(const at::Tensor& gate_and_up, const ClampedGate& rule) {
  if (cuda_fuses_halves(gate_and_up)) return fused_gated(gate_and_up, {.clamped = rule});
  const std::int64_t width = gate_and_up.size(-1) / 2;
  const at::Tensor gate = gate_and_up.narrow(-1, 0, width).clamp_max(rule.limit);
  at::Tensor opened = gate.mul(rule.alpha).sigmoid_().mul_(gate);
  return opened.mul_(gate_and_up.narrow(-1, width, width).clamp(-rule.limit, rule.limit).add_(1));
}

void clamped_gated_backward(at::Tensor& gate_and_up, at::Tensor& gradient,
                            const ClampedGate& rule) {
  if (cuda_fuses_halves(gate_and_up) && gradient.is_contiguous())
    return fused_gated_backward(gate_and_up, gradient, {.clamped = rule});
  const std::int64_t width = gate_and_up.size(-1) / 2;
  at::Tensor gate = gate_and_up.narrow(-1, 0, width);
  at::Tensor up = gate_and_up.narrow(-1, width, width);
  at::Tensor opened = gate.clamp_max(rule.limit);
  {
    const at::Tensor open = opened.mul(rule.alpha).sigmoid_();
    opened.mul_(open);
    // The slope of g sigmoid(alpha g): open + alpha opened (1 - open).
    const at::Tensor is_clamped = gate > rule.limit;
    gate.copy_(open).neg_().add_(1).mul_(opened).mul_(rule.alpha).add_(open);
    gate.masked_fill_(is_clamped, 0);
  }
  const at::Tensor more = up.clamp(-rule.limit, rule.limit).add_(1);
  const at::Tensor is_clamped = (up > rule.limit).logical_or_(up < -rule.limit);
  gate.mul_(more).mul_(gradient);
  up.copy_(opened).mul_(gradient).masked_fill_(is_clamped, 0);
  gradient.copy_(opened.mul_(more));
}

at::Tensor gated(const at::Tensor& gate_and_up, Activation activation) {
  if (cuda_fuses_halves(gate_and_up)) return fused_gated(gate_and_up, {.activation = activation});
  const std::int64_t width = gate_and_up.size(-1) / 2;
  return activate(gate_and_up.narrow(-1, 0, width), activation)
      .mul_(gate_and_up.narrow(-1, width, width));
}

void gated_backward(at::Tensor& gate_and_up, at::Tensor& gradient, Activation activation) {
  if (cuda_fuses_halves(gate_and_up) && gradient.is_contiguous())
    return fused_gated_backward(gate_and_up, gradient, {.activation = activation});
  const std::int64_t width = gate_and_up.size(-1) / 2;
  at::Tensor gate = gate_and_up.narrow(-1, 0, width);
  at::Tensor up = gate_and_up.narrow(-1, width, width);
  at::Tensor activated;
  at::Tensor grad_gate = gradient.mul(up);
  if (activation == Activation::kSilu) {
    // In place of a copy: the last bits depend on where a row begins in memory.
    activated = at::silu(gate);
    grad_gate = at::silu_backward(grad_gate, gate);
  } else {
    activated = gate.clone(at::MemoryFormat::Contiguous);
    activate_backward(activated, grad_gate, activation, {});
  }
  gate.copy_(grad_gate);
  const at::Tensor product = activated.mul(up);
  up.copy_(gradient.mul(activated));
  gradient.copy_(product);
}

}  // namespace sluice::engine
