// The elementwise function between a feed-forward layer's products.
#pragma once

#include <ATen/core/Tensor.h>

#include "engine/model/activation.h"

namespace sluice::engine {

at::Tensor activate(const at::Tensor& input, Activation activation);

// In place: the function's input becomes its output, and the output's gradient becomes the input's.
// The sum of the latter over all rows is added to bias_gradient (fp32; may be undefined).
void activate_backward(at::Tensor& input, at::Tensor& gradient, Activation activation,
                       const at::Tensor& bias_gradient);

}  // namespace sluice::engine
