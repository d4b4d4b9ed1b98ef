// RMSNorm over the last dimension (Zhang and Sennrich, "Root Mean Square Layer Normalization",
// 2019): the input divided by its root mean square, times the weight, as in Hugging Face's Llama.
// Statistics in fp32 (float64 for float64). A weight in fp32 multiplies rows of 16 bits before they
// are rounded, as in Gemma and Qwen3.5; another one after that.
#pragma once

#include <ATen/core/Tensor.h>

#include "engine/model/ops/dropout.h"

namespace sluice::engine {

struct RmsNormed {
  at::Tensor output;
  at::Tensor rstd;  // [..., 1], fp32
};
RmsNormed rms_norm(const at::Tensor& input, const at::Tensor& weight, double epsilon);

// Replaces `branch` by the residual stream, its own dropout plus `residual`, and returns its norm.
RmsNormed add_and_rms_norm(at::Tensor& branch, const at::Tensor& residual, const Dropout& dropout,
                           const at::Tensor& weight, double epsilon);

// Returns the input's gradient plus `residual`, which may be undefined. The weight's gradient is
// added to weight_gradient (fp32), unless that is undefined. The result may reuse the memory of
// grad_output, which the caller must not use afterwards.
at::Tensor rms_norm_backward(at::Tensor grad_output, const at::Tensor& input,
                             const at::Tensor& rstd, const at::Tensor& weight,
                             const at::Tensor& weight_gradient, const at::Tensor& residual);

}  // namespace sluice::engine
