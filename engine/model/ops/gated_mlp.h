// The gated feed-forward's middle (Shazeer, "GLU Variants Improve Transformer", 2020): the SiLU of
// a gate, multiplied by the other half. Both are in one tensor [..., 2 F], with the gates first.
#pragma once

#include <ATen/core/Tensor.h>

namespace sluice::engine {

// Returns [..., F].
at::Tensor silu_gated(const at::Tensor& gate_and_up);

// In place: gate_and_up becomes its gradient. `gradient` is that of silu_gated()'s output, and
// becomes that output, [..., F].
void silu_gated_backward(at::Tensor& gate_and_up, at::Tensor& gradient);

}  // namespace sluice::engine
