#include "engine/model/linear.h"

#include <ATen/ops/addmm.h>
#include <ATen/ops/mm.h>

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

at::Tensor linear_input_gradient(const at::Tensor& grad_output, const at::Tensor& weight) {
  return with_shape_of(at::mm(as_rows(grad_output), weight.t()), grad_output);
}

void accumulate_weight_gradient(const at::Tensor& gradient, const at::Tensor& left_rows,
                                const at::Tensor& right_rows) {
  const at::Tensor left = as_rows(left_rows);
  const at::Tensor right = as_rows(right_rows);
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

void write_weight_gradient(const at::Tensor& gradient, const at::Tensor& left_rows,
                           const at::Tensor& right_rows) {
  const at::Tensor left = as_rows(left_rows);
  const at::Tensor right = as_rows(right_rows);
  at::Tensor sum = gradient;
  const at::ScalarType wanted = gradient.scalar_type();
  if (left.scalar_type() == wanted) {
    at::mm_out(sum, left.t(), right);
  } else if (left.is_cuda()) {
    at::mm_out(sum, left.t(), right, wanted);
  } else {
    sum.copy_(at::mm(left.t(), right));
  }
}

}  // namespace sluice::engine
