// Products with weights stored [in, out] (Hugging Face's Conv1D) or [out, in] (torch's Linear),
// with a bias or without. Rows are all dimensions but the last.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace sluice::engine {

enum class WeightOrder : std::uint8_t { kInOut, kOutIn };

// input @ weight + bias, with the weight transposed to [in, out] if needed; `bias` may be
// undefined.
at::Tensor linear(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias,
                  WeightOrder order = WeightOrder::kInOut);

// The input's gradient.
at::Tensor linear_input_gradient(const at::Tensor& grad_output, const at::Tensor& weight,
                                 WeightOrder order = WeightOrder::kInOut);

// gradient (fp32) += left^T @ right, for left [..., n] and right [..., m] of one dtype. For a
// weight [in, out] these are the input and the output's gradient; for [out, in] they are swapped.
// The product of 16-bit numbers is rounded to 16 bits only on a CPU with fast 16-bit products
// (products.h).
void accumulate_weight_gradient(const at::Tensor& gradient, const at::Tensor& left,
                                const at::Tensor& right);

// The same, but overwrites `gradient` without reading it.
void write_weight_gradient(const at::Tensor& gradient, const at::Tensor& left,
                           const at::Tensor& right);

}  // namespace sluice::engine
