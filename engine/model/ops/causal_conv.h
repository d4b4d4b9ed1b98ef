// A causal depthwise convolution over time, and then a SiLU: each channel of a token sees the last
// few tokens of its document, itself included.
//
// Sums in fp32 (float64 for float64), rounded to the input's dtype before the SiLU, as in
// transformers. ATen's operators copy a bounded number of channels to fp32 at a time, and the
// kernel of delta_kernels.h none.
//
// Shapes: input [B, T, C], perhaps a view; weight [C, 1, taps], whose last tap is the token itself.
#pragma once

#include <ATen/core/Tensor.h>

#include "engine/model/documents.h"

namespace sluice::engine {

// Returns [B, T, C]. `documents` null: each sequence is one document.
at::Tensor causal_conv_silu(const at::Tensor& input, const at::Tensor& weight,
                            const Documents* documents);

// Writes the input's gradient to `grad_input` [B, T, C], which may be a view, but not of
// `grad_output`. Adds the weight's gradient to weight_gradient (fp32; may be undefined).
void causal_conv_silu_backward(const at::Tensor& grad_output, const at::Tensor& input,
                               const at::Tensor& weight, const Documents* documents,
                               const at::Tensor& grad_input, const at::Tensor& weight_gradient);

}  // namespace sluice::engine
