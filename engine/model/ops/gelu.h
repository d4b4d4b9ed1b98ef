// The tanh GELU.
#pragma once

#include <ATen/core/Tensor.h>

namespace sluice::engine {

at::Tensor gelu(const at::Tensor& input);

// In place: the GELU's input becomes its output, and its output's gradient its input's, whose sum
// over all rows is added to bias_gradient (fp32; may be undefined).
void gelu_backward(at::Tensor& input, at::Tensor& gradient, const at::Tensor& bias_gradient);

}  // namespace sluice::engine
