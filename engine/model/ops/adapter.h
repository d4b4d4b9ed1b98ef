// Low-rank adapters beside products with weights [out, in] (engine/model/lora_recipe.h). Rows are
// all dimensions but the last. The product with A is cheap, so backward makes it again instead of
// keeping it; and so is the input that dropout leaves of it.
#pragma once

#include <ATen/core/Tensor.h>

#include "engine/model/ops/dropout.h"

namespace sluice::engine {

struct Adapter {
  const at::Tensor& a;  // [rank, in]
  const at::Tensor& b;  // [out, rank]
  double scale = 1;
  Dropout dropout = {};  // of the input, before A
};

// `output` [..., out], which may be columns of a wider tensor, becomes more by
// scale * (dropout(input) A^T) B^T.
void add_adapter(const at::Tensor& output, const at::Tensor& input, const Adapter& adapter);

// scale * grad_output B [rows, rank]: what the two below make gradients of.
at::Tensor adapter_inner_gradient(const at::Tensor& grad_output, const Adapter& adapter);
// grad_input += inner A, where dropout left the input.
void add_adapter_input_gradient(at::Tensor& grad_input, const at::Tensor& inner,
                                const Adapter& adapter);

// Of its two matrices, fp32.
struct AdapterGradients {
  const at::Tensor& a;
  const at::Tensor& b;
  bool overwrite = false;  // whatever was there; else they are added to
};
void put_adapter_gradients(const AdapterGradients& gradients, const at::Tensor& inner,
                           const at::Tensor& grad_output, const at::Tensor& input,
                           const Adapter& adapter);

}  // namespace sluice::engine
