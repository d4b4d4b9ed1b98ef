// Gradients of biases: sums over all rows, which are all dimensions but the last. If there is no
// bias, its gradient is undefined.
#pragma once

#include <ATen/core/Tensor.h>

#include "engine/model/ops/dropout.h"

namespace sluice::engine {

// gradient (fp32) += the sum of rows.
void accumulate_bias_gradient(const at::Tensor& gradient, const at::Tensor& rows);

// Returns with_dropout(rows), and adds its sum to the gradient (fp32).
at::Tensor drop_and_accumulate(const at::Tensor& rows, const Dropout& dropout,
                               const at::Tensor& gradient);

}  // namespace sluice::engine
