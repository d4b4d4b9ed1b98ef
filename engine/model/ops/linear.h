// Products with weights stored [in, out] (Hugging Face's Conv1D) or [out, in] (torch's Linear),
// with a bias or without. Rows are all dimensions but the last.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace sluice::engine {

enum class WeightOrder : std::uint8_t { kInOut, kOutIn };

// input @ weight + bias, with the weight turned to [in, out]; `bias` may be undefined.
at::Tensor linear(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias,
                  WeightOrder order = WeightOrder::kInOut);

// The input's gradient.
at::Tensor linear_input_gradient(const at::Tensor& grad_output, const at::Tensor& weight,
                                 WeightOrder order = WeightOrder::kInOut);

// gradient (fp32) += left^T @ right, for left [..., n] and right [..., m] of one dtype: input and
// gradient of the output for a weight [in, out], the other way round for [out, in]. The
// product of 16-bit numbers is rounded to 16 bits on a CPU with fast products of them
// (products.h), and nowhere else.
void accumulate_weight_gradient(const at::Tensor& gradient, const at::Tensor& left,
                                const at::Tensor& right);

// The same, and without what was in `gradient` before: that is not read.
void write_weight_gradient(const at::Tensor& gradient, const at::Tensor& left,
                           const at::Tensor& right);

}  // namespace sluice::engine
