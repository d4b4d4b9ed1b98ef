// Products with weights stored [in, out] (Hugging Face's Conv1D) or [out, in] (torch's Linear),
// with a bias or without. Rows are all dimensions but the last.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "engine/model/ops/dropout.h"

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

// Low-rank adapters on products with weights [out, in] (engine/model/lora_recipe.h). Rows are all
// dimensions but the last. The product with A and the input's dropout are cheap, so backward
// recomputes them instead of keeping them.
struct Adapter {
  const at::Tensor& a;  // [rank, in]
  const at::Tensor& b;  // [out, rank]
  double scale = 1;
  Dropout dropout = {};  // on the input of A
};

// Adds scale * (dropout(input) A^T) B^T to `output` [..., out], which may be columns of a wider
// tensor.
void add_adapter(const at::Tensor& output, const at::Tensor& input, const Adapter& adapter);

// scale * grad_output B [rows, rank], from which the two functions below compute gradients.
at::Tensor adapter_inner_gradient(const at::Tensor& grad_output, const Adapter& adapter);
// grad_input += inner A, where dropout kept the input.
void add_adapter_input_gradient(at::Tensor& grad_input, const at::Tensor& inner,
                                const Adapter& adapter);

// The gradients of the two matrices, fp32.
struct AdapterGradients {
  const at::Tensor& a;
  const at::Tensor& b;
  bool overwrite = false;  // instead of adding to them
};
void put_adapter_gradients(const AdapterGradients& gradients, const at::Tensor& inner,
                           const at::Tensor& grad_output, const at::Tensor& input,
                           const Adapter& adapter);

}  // namespace sluice::engine
