// The functions between a feed-forward layer's products: elementwise, or gated.
#pragma once

#include <ATen/core/Tensor.h>

#include "engine/model/activation.h"

namespace sluice::engine {

at::Tensor activate(const at::Tensor& input, Activation activation);

// In place: the function's input becomes its output, and the output's gradient becomes the input's.
// The sum of the latter over all rows is added to bias_gradient (fp32; may be undefined).
void activate_backward(at::Tensor& input, at::Tensor& gradient, Activation activation,
                       const at::Tensor& bias_gradient);

// The gated middle (Shazeer, "GLU Variants Improve Transformer", 2020): an activation of a gate,
// multiplied by the other half. Both are in one tensor [..., 2 F], with the gates first. Returns
// [..., F].
at::Tensor gated(const at::Tensor& gate_and_up, Activation activation);

// In place: gate_and_up becomes its gradient. `gradient` is that of gated()'s output, and becomes
// that output, [..., F].
void gated_backward(at::Tensor& gate_and_up, at::Tensor& gradient, Activation activation);

// The same with gpt-oss' gate.
at::Tensor clamped_gated(const at::Tensor& gate_and_up, const ClampedGate& rule);
void clamped_gated_backward(at::Tensor& gate_and_up, at::Tensor& gradient, const ClampedGate& rule);

}  // namespace sluice::engine
