#include "engine/model/linear.h"

#include <ATen/ops/addmm.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/sum.h>

#include <vector>

namespace sluice::engine {
namespace {

at::Tensor as_rows(const at::Tensor& tensor) { return tensor.reshape({-1, tensor.size(-1)}); }

at::Tensor with_shape_of(const at::Tensor& rows, const at::Tensor& like) {
  std::vector<std::int64_t> shape = like.sizes().vec();
  shape.back() = rows.size(-1);
  return rows.view(shape);
}

}  // namespace

at::Tensor linear(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias) {
  return with_shape_of(at::addmm(bias, as_rows(input), weight), input);
}

at::Tensor linear_backward(const at::Tensor& grad_output, const at::Tensor& input,
                           const at::Tensor& weight, const LinearGradients& gradients) {
  const at::Tensor grad_rows = as_rows(grad_output);
  accumulate_weight_gradient(gradients.weight, as_rows(input), grad_rows);
  gradients.bias.add_(at::sum(grad_rows, {0}, false, gradients.bias.scalar_type()));
  return with_shape_of(at::mm(grad_rows, weight.t()), grad_output);
}

void accumulate_weight_gradient(const at::Tensor& gradient, const at::Tensor& left,
                                const at::Tensor& right) {
  at::Tensor sum = gradient;
  const at::ScalarType wanted = gradient.scalar_type();
  if (left.scalar_type() == wanted) {
    sum.addmm_(left.t(), right);
  } else if (left.is_cuda()) {
    at::addmm_out(sum, sum, left.t(), right, wanted);
  } else {
    // The CPU has no such product either way; in 16 bits it is several times as fast as in fp32,
    // and its sums are fp32's until they are rounded, as autograd's are.
    sum.add_(at::mm(left.t(), right));
  }
}

}  // namespace sluice::engine
