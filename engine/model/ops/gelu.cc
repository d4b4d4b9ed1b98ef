#include "engine/model/ops/gelu.h"

#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>

#include "engine/model/ops/bias_gradient.h"
#include "engine/model/ops/fused_kernels.h"

namespace sluice::engine {
namespace {

constexpr const char* kTanh = "tanh";

}  // namespace

at::Tensor gelu(const at::Tensor& input) {
  return cuda_fuses(input) ? fused_gelu(input) : at::gelu(input, kTanh);
}

void gelu_backward(at::Tensor& input, at::Tensor& gradient, const at::Tensor& bias_gradient) {
  if (cuda_fuses(input) && cuda_fuses(gradient)) {
    return fused_gelu_backward(input, gradient, bias_gradient);
  }
  at::gelu_backward_out(gradient, gradient, input, kTanh);
  at::gelu_(input, kTanh);
  accumulate_bias_gradient(bias_gradient, gradient);
}

}  // namespace sluice::engine
