// RMSNorm over the last dimension (Zhang and Sennrich, "Root Mean Square Layer Normalization",
// 2019): the input over its root mean square, times the weight, as Hugging Face's Llama has it.
// Statistics in fp32 (float64 for float64).
#pragma once

#include <ATen/core/Tensor.h>

namespace sluice::engine {

struct RmsNormed {
  at::Tensor output;
  at::Tensor rstd;  // [..., 1], fp32
};
RmsNormed rms_norm(const at::Tensor& input, const at::Tensor& weight, double epsilon);

// `branch` becomes the residual stream, itself plus `residual`, whose norm is returned.
RmsNormed add_and_rms_norm(at::Tensor& branch, const at::Tensor& residual, const at::Tensor& weight,
                           double epsilon);

// Returns the input's gradient plus `residual`, which may be undefined. The weight's is added to
// weight_gradient (fp32), unless that is undefined. The result may have the memory of
// grad_output, which is the caller's no more.
at::Tensor rms_norm_backward(at::Tensor grad_output, const at::Tensor& input,
                             const at::Tensor& rstd, const at::Tensor& weight,
                             const at::Tensor& weight_gradient, const at::Tensor& residual);

}  // namespace sluice::engine
