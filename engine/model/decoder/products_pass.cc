#include "engine/model/decoder/products_pass.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>

#include <optional>
#include <utility>

#include "engine/model/ops/bias_gradient.h"
#include "engine/model/ops/linear.h"
#include "engine/model/unit_views.h"

namespace sluice::engine {
namespace {

// `count` parameters of `views` from `first` on, joined along their first dimension. Returns a view
// if each begins at the end of the one before, and the other dimensions are equal; else nothing.
// UnitLayout leaves gaps after odd sizes. The layout alone decides.
std::optional<at::Tensor> joined_rows(const UnitViews& views, int first, int count) {
  const at::Tensor& begin = views[first];
  if (count == 1) return begin;
  std::vector<std::int64_t> shape = begin.sizes().vec();
  std::int64_t end = begin.storage_offset() + begin.numel();
  for (int i = first + 1; i < first + count; ++i) {
    const at::Tensor& next = views[i];
    if (!next.is_alias_of(begin) || next.storage_offset() != end ||
        next.sizes().slice(1) != begin.sizes().slice(1))
      return std::nullopt;
    end += next.numel();
    shape.front() += next.size(0);
  }
  return begin.as_strided(shape, begin.strides(), begin.storage_offset());
}

}  // namespace

std::int64_t ProductsPass::first_column(int part) const {
  std::int64_t column = 0;
  for (int before = 0; before < part; ++before) column += width(before);
  return column;
}

// Matrices [in, out] are not contiguous when joined.
std::optional<at::Tensor> ProductsPass::joined_weight() const {
  if (order_ == WeightOrder::kInOut && indices_.parts > 1) return std::nullopt;
  return joined_rows(w_, indices_.weight, indices_.parts);
}

std::optional<at::Tensor> ProductsPass::weight_for_fp8() const {
  if (!fp8_.enabled) return std::nullopt;
  auto weight = joined_weight();
  return weight && has_fp8_product(*weight) ? std::move(weight) : std::nullopt;
}

at::Tensor ProductsPass::fp8_output(const at::Tensor& input, const at::Tensor& weight) const {
  at::Tensor bias;
  if (indices_.bias != kNoParameter) {
    std::vector<at::Tensor> parts;
    parts.reserve(static_cast<std::size_t>(indices_.parts));
    for (int part = 0; part < indices_.parts; ++part) parts.push_back(w_[indices_.bias + part]);
    bias = parts.size() == 1 ? parts.front() : at::cat(parts);
  }
  return fp8_linear(input, fp8_weight(weight), bias);
}

// Computes one product if weights and biases are contiguous.
at::Tensor ProductsPass::base_output(const at::Tensor& input) const {
  if (const auto weight = weight_for_fp8()) return fp8_output(input, *weight);
  const bool has_bias = indices_.bias != kNoParameter;
  const auto weight = joined_weight();
  const auto bias =
      has_bias ? joined_rows(w_, indices_.bias, indices_.parts) : std::optional(at::Tensor());
  if (weight && bias) return linear(input, *weight, *bias, order_);
  std::vector<at::Tensor> made;
  made.reserve(static_cast<std::size_t>(indices_.parts));
  for (int part = 0; part < indices_.parts; ++part)
    made.push_back(linear(input, w_[indices_.weight + part],
                          has_bias ? w_[indices_.bias + part] : at::Tensor(), order_));
  return at::cat(made, -1);
}

at::Tensor ProductsPass::output(const at::Tensor& input) const {
  at::Tensor made = base_output(input);
  for (int part = 0; part < indices_.parts; ++part)
    if (has_adapter(part))
      add_adapter(made.narrow(-1, first_column(part), width(part)), input, adapter(part));
  return made;
}

ProductsPass::Backward::Backward(const ProductsPass& products, const at::Tensor& grad_output)
    : products_(products),
      grad_output_(grad_output),
      inner_(static_cast<std::size_t>(products.indices_.parts)) {
  for (int part = 0; part < products.indices_.parts; ++part)
    if (products.has_adapter(part))
      inner_[static_cast<std::size_t>(part)] =
          adapter_inner_gradient(columns(part), products.adapter(part));
  if (products.weight_for_fp8()) fp8_.emplace(grad_output, !products.fp8_.wide_weight_gradients);
}

at::Tensor ProductsPass::Backward::columns(int part) const {
  return grad_output_.narrow(-1, products_.first_column(part), products_.width(part));
}

at::Tensor ProductsPass::Backward::of_part(int part) const {
  return products_.indices_.parts == 1 ? grad_output_ : columns(part).contiguous();
}

at::Tensor ProductsPass::Backward::input_gradient() const {
  const BlockProducts& indices = products_.indices_;
  const UnitViews& w = products_.w_;
  at::Tensor sum;
  if (const auto weight = products_.joined_weight()) {
    sum = fp8_ ? fp8_->input_gradient(products_.fp8_weight(*weight))
               : linear_input_gradient(grad_output_, *weight, products_.order_);
  } else {
    for (int part = 0; part < indices.parts; ++part) {
      at::Tensor made =
          linear_input_gradient(of_part(part), w[indices.weight + part], products_.order_);
      sum = sum.defined() ? sum.add_(made) : std::move(made);
    }
  }
  for (int part = 0; part < indices.parts; ++part)
    if (products_.has_adapter(part))
      add_adapter_input_gradient(sum, inner_[static_cast<std::size_t>(part)],
                                 products_.adapter(part));
  return sum;
}

void ProductsPass::Backward::put_weight(const at::Tensor& gradient, const at::Tensor& grad_output,
                                        const at::Tensor& input, bool overwrite) const {
  const auto put = overwrite ? &write_weight_gradient : &accumulate_weight_gradient;
  if (products_.order_ == WeightOrder::kOutIn)
    put(gradient, grad_output, input);
  else
    put(gradient, input, grad_output);
}

void ProductsPass::Backward::put_biases(const UnitViews& gradients) const {
  const BlockProducts& indices = products_.indices_;
  if (indices.bias == kNoParameter || !gradients[indices.bias].defined()) return;
  if (const auto joined = joined_rows(gradients, indices.bias, indices.parts))
    return accumulate_bias_gradient(*joined, grad_output_);
  for (int part = 0; part < indices.parts; ++part)
    accumulate_bias_gradient(gradients[indices.bias + part], of_part(part));
}

void ProductsPass::Backward::put_matrices(const UnitViews& gradients, const at::Tensor& input,
                                          bool overwrite) const {
  const BlockProducts& indices = products_.indices_;
  if (gradients[indices.weight].defined()) {
    const bool may_join = indices.parts == 1 || products_.order_ == WeightOrder::kOutIn;
    const auto joined =
        may_join ? joined_rows(gradients, indices.weight, indices.parts) : std::nullopt;
    if (joined && fp8_ && !products_.fp8_.wide_weight_gradients) {
      fp8_->put_weight(*joined, products_.order_ == WeightOrder::kInOut, input, overwrite);
    } else if (joined) {
      put_weight(*joined, grad_output_, input, overwrite);
    } else {
      for (int part = 0; part < indices.parts; ++part)
        put_weight(gradients[indices.weight + part], of_part(part), input, overwrite);
    }
  }
  for (int part = 0; part < indices.parts; ++part) {
    if (!products_.has_adapter(part)) continue;
    const int a = products_.place(part);
    put_adapter_gradients({.a = gradients[a], .b = gradients[a + 1], .overwrite = overwrite},
                          inner_[static_cast<std::size_t>(part)], of_part(part), input,
                          products_.adapter(part));
  }
}

}  // namespace sluice::engine
