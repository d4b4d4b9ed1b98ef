// Products with weights stored [in, out] (Hugging Face's Conv1D). Rows are all dimensions but the
// last.
#pragma once

#include <ATen/core/Tensor.h>

namespace sluice::engine {

// input @ weight + bias.
at::Tensor linear(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias);

struct LinearGradients {
  const at::Tensor& weight;  // fp32 [in, out], added to
  const at::Tensor& bias;    // fp32 [out], added to
};
// Returns the input's gradient, grad_output @ weight^T.
at::Tensor linear_backward(const at::Tensor& grad_output, const at::Tensor& input,
                           const at::Tensor& weight, const LinearGradients& gradients);

// gradient (fp32) += left^T @ right, for left [rows, n] and right [rows, m] of one dtype. The
// product of 16-bit numbers is rounded to 16 bits on the CPU, not on CUDA.
void accumulate_weight_gradient(const at::Tensor& gradient, const at::Tensor& left,
                                const at::Tensor& right);

}  // namespace sluice::engine
