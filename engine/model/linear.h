// Products with weights stored [in, out] (Hugging Face's Conv1D). Rows are all dimensions but the
// last.
#pragma once

#include <ATen/core/Tensor.h>

namespace sluice::engine {

// input @ weight + bias.
at::Tensor linear(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias);

// The input's gradient, grad_output @ weight^T.
at::Tensor linear_input_gradient(const at::Tensor& grad_output, const at::Tensor& weight);

// gradient (fp32) += left^T @ right, for left [..., n] and right [..., m] of one dtype. The
// product of 16-bit numbers is rounded to 16 bits on the CPU, not on CUDA.
void accumulate_weight_gradient(const at::Tensor& gradient, const at::Tensor& left,
                                const at::Tensor& right);

// The same, and without what was in `gradient` before: that is not read.
void write_weight_gradient(const at::Tensor& gradient, const at::Tensor& left,
                           const at::Tensor& right);

}  // namespace sluice::engine
