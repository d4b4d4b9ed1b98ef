// The gated feed-forward's middle (Shazeer, "GLU Variants Improve Transformer", 2020): the SiLU of
// a gate, times what it lets through. Both come from one tensor [..., 2 F]: gates first.
#pragma once

#include <ATen/core/Tensor.h>

namespace sluice::engine {

// [..., F].
at::Tensor silu_gated(const at::Tensor& gate_and_up);

// In place: gate_and_up becomes its gradient, and `gradient`, of what silu_gated() made of it,
// becomes that itself, [..., F].
void silu_gated_backward(at::Tensor& gate_and_up, at::Tensor& gradient);

}  // namespace sluice::engine
