#include "engine/model/ops/linear.h"

#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
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

namespace {

// The input of A.
at::Tensor dropped_rows(const at::Tensor& input, const Dropout& dropout) {
  const at::Tensor rows = as_rows(input);
  return dropout.active() ? with_dropout(rows.contiguous(), dropout) : rows;
}

// A view, even of columns.
at::Tensor view_as_rows(const at::Tensor& tensor) { return tensor.flatten(0, -2); }

// scale * left @ right, rounded once.
at::Tensor scaled_product(const at::Tensor& left, const at::Tensor& right, double scale) {
  at::Tensor made = at::empty({left.size(0), right.size(1)}, left.options());
  add_product(made, left, right, {.beta = 0, .alpha = scale});
  return made;
}

}  // namespace

void add_adapter(const at::Tensor& output, const at::Tensor& input, const Adapter& adapter) {
  const at::Tensor inner = product(dropped_rows(input, adapter.dropout), adapter.a.t());
  add_product(view_as_rows(output), inner, adapter.b.t(), {.alpha = adapter.scale});
}

at::Tensor adapter_inner_gradient(const at::Tensor& grad_output, const Adapter& adapter) {
  return scaled_product(as_rows(grad_output), adapter.b, adapter.scale);
}

void add_adapter_input_gradient(at::Tensor& grad_input, const at::Tensor& inner,
                                const Adapter& adapter) {
  const at::Tensor rows = view_as_rows(grad_input);
  if (!adapter.dropout.active()) {
    add_product(rows, inner, adapter.a);
    return;
  }
  at::Tensor of_dropped = product(inner, adapter.a);
  drop_in_place(of_dropped, adapter.dropout);
  rows.add_(of_dropped);
}

void put_adapter_gradients(const AdapterGradients& gradients, const at::Tensor& inner,
                           const at::Tensor& grad_output, const at::Tensor& input,
                           const Adapter& adapter) {
  const at::Tensor rows = dropped_rows(input, adapter.dropout);
  const at::Tensor scaled = scaled_product(rows, adapter.a.t(), adapter.scale);
  const auto put = gradients.overwrite ? &write_weight_gradient : &accumulate_weight_gradient;
  put(gradients.a, inner, rows);
  put(gradients.b, as_rows(grad_output), scaled);
}

}  // namespace sluice::engine
