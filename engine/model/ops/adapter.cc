#include "engine/model/ops/adapter.h"

#include <ATen/ops/empty.h>

#include "engine/model/ops/linear.h"
#include "engine/model/ops/products.h"

namespace sluice::engine {
namespace {

at::Tensor as_rows(const at::Tensor& tensor) { return tensor.reshape({-1, tensor.size(-1)}); }

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
