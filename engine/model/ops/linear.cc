#include "engine/model/ops/linear.h"

#include <ATen/ops/addmm.h>
#include <ATen/ops/mm.h>

#include <cstdint>
#include <vector>

#include "engine/model/ops/products.h"

namespace sluice::engine {
namespace {

at::Tensor as_rows(const at::Tensor& tensor) { return tensor.reshape({-1, tensor.size(-1)}); }

at::Tensor with_shape_of(const at::Tensor& rows, const at::Tensor& like) {
  std::vector<std::int64_t> shape = like.sizes().vec();
  shape.back() = rows.size(-1);
  return rows.view(shape);
}

enum class Put : std::uint8_t { kAdd, kWrite };

void put_product(const at::Tensor& gradient, const at::Tensor& left, const at::Tensor& right,
                 Put how) {
  const bool adds = how == Put::kAdd;
  const at::ScalarType wanted = gradient.scalar_type();
  at::Tensor sum = gradient;
  if (left.scalar_type() == wanted) {
    if (adds)
      sum.addmm_(left.t(), right);
    else
      at::mm_out(sum, left.t(), right);
  } else if (left.is_cuda()) {
    if (adds)
      at::addmm_out(sum, sum, left.t(), right, wanted);
    else
      at::mm_out(sum, left.t(), right, wanted);
  } else if (multiplies_in_fp32(left)) {
    add_transposed_product_in_fp32(gradient, left, right, /*overwrites=*/!adds);
  } else {
    // The CPU has no such product. A 16-bit product is several times as fast as fp32 here. Its sums
    // are fp32 until they are rounded, as in autograd.
    const at::Tensor product = at::mm(left.t(), right);
    if (adds)
      sum.add_(product);
    else
      sum.copy_(product);
  }
}

}  // namespace

at::Tensor linear(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias,
                  WeightOrder order) {
  const at::Tensor turned = order == WeightOrder::kInOut ? weight : weight.t();
  if (!bias.defined()) return with_shape_of(product(as_rows(input), turned), input);
  return with_shape_of(product_plus(bias, as_rows(input), turned), input);
}

at::Tensor linear_input_gradient(const at::Tensor& grad_output, const at::Tensor& weight,
                                 WeightOrder order) {
  const at::Tensor turned = order == WeightOrder::kInOut ? weight.t() : weight;
  return with_shape_of(product(as_rows(grad_output), turned), grad_output);
}

void accumulate_weight_gradient(const at::Tensor& gradient, const at::Tensor& left,
                                const at::Tensor& right) {
  put_product(gradient, as_rows(left), as_rows(right), Put::kAdd);
}

void write_weight_gradient(const at::Tensor& gradient, const at::Tensor& left,
                           const at::Tensor& right) {
  put_product(gradient, as_rows(left), as_rows(right), Put::kWrite);
}

}  // namespace sluice::engine
