// Gates of what attends: an RMSNorm of each head times the SiLU of a gate, as in transformers'
// RMSNormGated, and a sigmoid gate. Statistics and the SiLU in fp32 (float64 for float64), some
// rows at a time, or in the kernel of delta_kernels.h, which does not round between them.
#pragma once

#include <ATen/core/Tensor.h>

namespace sluice::engine {

// Input and gate [B, T, heads * D] in one dtype, perhaps views; weight [D], shared by the heads.
at::Tensor gated_rms_norm(const at::Tensor& input, const at::Tensor& gate, const at::Tensor& weight,
                          double epsilon);
// Replaces `gradient`, that of the output, by the input's, and writes the gate's to `grad_gate`,
// which may be a view. Adds to weight_gradient (fp32; may be undefined).
void gated_rms_norm_backward(const at::Tensor& gradient, const at::Tensor& input,
                             const at::Tensor& gate, const at::Tensor& weight, double epsilon,
                             const at::Tensor& grad_gate, const at::Tensor& weight_gradient);

// input * sigmoid(gate).
at::Tensor sigmoid_gated(const at::Tensor& input, const at::Tensor& gate);
// Replaces `gradient`, that of the output, by the input's, and `gate` by its gradient.
void sigmoid_gated_backward(const at::Tensor& gradient, const at::Tensor& input,
                            const at::Tensor& gate);

}  // namespace sluice::engine
