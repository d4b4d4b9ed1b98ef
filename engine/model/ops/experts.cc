#include "engine/model/ops/experts.h"

#include <ATen/ops/_grouped_mm.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/floor_divide.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "engine/model/ops/cuda_kernels.h"
#include "engine/model/ops/fused_kernels.h"
#include "engine/model/ops/linear.h"
#include "engine/model/ops/products.h"

namespace sluice::engine {
namespace {

at::ScalarType wide_type(const at::Tensor& numbers) {
  return numbers.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

// Whether `next` begins where `before` ends.
bool follows(const at::Tensor& before, const at::Tensor& next) {
  return next.is_alias_of(before) &&
         next.storage_offset() == before.storage_offset() + before.numel();
}

at::Tensor stack_of(const std::vector<at::Tensor>& matrices, int parts) {
  const at::Tensor& first = matrices.front();
  const auto each = static_cast<std::size_t>(parts);
  const std::int64_t of_expert = parts * first.numel();
  const std::int64_t stride =
      matrices.size() > each ? matrices[each].storage_offset() - first.storage_offset() : of_expert;
  if (stride < of_expert) return {};
  for (std::size_t i = 0; i < matrices.size(); ++i) {
    const at::Tensor& here = matrices[i];
    const bool is_first_part = i % each == 0;
    const auto expert = static_cast<std::int64_t>(i / each);
    if (!here.is_contiguous() || !here.is_alias_of(first)) return {};
    if (is_first_part && here.storage_offset() != first.storage_offset() + expert * stride)
      return {};
    if (!is_first_part && !follows(matrices[i - 1], here)) return {};
  }
  const auto experts = static_cast<std::int64_t>(matrices.size() / each);
  return first.as_strided({experts, parts * first.size(0), first.size(1)},
                          {stride, first.size(1), 1}, first.storage_offset());
}

// What _grouped_mm takes without waiting for the device: bf16 on compute capability 9.x or 10.x,
// with strides that are multiples of 16 bytes.
bool are_grouped(const at::Tensor& rows, const ExpertMatrices& matrices) {
  if (!rows.is_cuda() || rows.scalar_type() != at::kBFloat16 || !matrices.stacked().defined())
    return false;
  constexpr std::int64_t kAligned = 8;
  const at::Tensor& stacked = matrices.stacked();
  if (matrices.part_width() % kAligned != 0 || matrices.in() % kAligned != 0 ||
      stacked.stride(0) % kAligned != 0 || stacked.storage_offset() % kAligned != 0)
    return false;
  const int major = cuda_major(rows.device());
  return major == 9 || major == 10;
}

// How many of the products' columns are in memory at once: whole tiles, from the shape alone.
std::int64_t gradient_columns(const ExpertMatrices& gradients) {
  constexpr std::int64_t kTile = 128;
  const std::int64_t fitting = kGroupedGradientNumbers / (gradients.experts() * gradients.in());
  return std::max(fitting / kTile * kTile, kTile);
}

void put_grouped_gradients(const ExpertMatrices& gradients, const at::Tensor& grad_products,
                           const at::Tensor& rows, const ExpertRows& groups, bool overwrite) {
  const std::int64_t step = gradient_columns(gradients);
  for (std::int64_t first = 0; first < gradients.out(); first += step) {
    const std::int64_t columns = std::min(step, gradients.out() - first);
    const at::Tensor made =
        at::_grouped_mm(grad_products.narrow(1, first, columns).t(), rows, groups.ends());
    const at::Tensor sum = gradients.stacked().narrow(1, first, columns);
    if (overwrite)
      sum.copy_(made);
    else
      sum.add_(made);
  }
}

}  // namespace

Routing route(const at::Tensor& logits, const RoutingRule& rule) {
  Routing routing;
  routing.probabilities = at::softmax(logits, -1, wide_type(logits));
  const auto [values, experts] =
      at::sort(routing.probabilities, /*stable=*/true, /*dim=*/-1, /*descending=*/true);
  routing.chosen = experts.narrow(-1, 0, rule.per_token).contiguous();
  routing.weights = values.narrow(-1, 0, rule.per_token).clone();
  if (rule.renormalises) routing.weights.div_(routing.weights.sum({-1}, /*keepdim=*/true));
  if (!rule.fp32_weights)
    routing.weights = routing.weights.to(logits.scalar_type()).to(wide_type(logits));
  return routing;
}

at::Tensor route_backward(const Routing& routing, const RoutingRule& rule,
                          const at::Tensor& grad_weights, at::ScalarType dtype,
                          const at::Tensor& grad_probabilities) {
  const at::Tensor values = routing.probabilities.gather(-1, routing.chosen);
  at::Tensor of_chosen = grad_weights;
  if (rule.renormalises) {
    const at::Tensor sum = values.sum({-1}, /*keepdim=*/true);
    const at::Tensor along = grad_weights.mul(values).sum({-1}, /*keepdim=*/true).div_(sum);
    of_chosen = grad_weights.sub(along).div_(sum);
  }
  at::Tensor along = of_chosen.mul(values).sum({-1}, /*keepdim=*/true);
  at::Tensor gradient = at::zeros_like(routing.probabilities);
  gradient.scatter_(-1, routing.chosen, of_chosen);
  if (grad_probabilities.defined()) {
    const at::Tensor of_all = grad_probabilities.to(gradient.scalar_type());
    gradient.add_(of_all);
    along.add_(routing.probabilities.mv(of_all).unsqueeze(-1));
  }
  return gradient.sub_(along).mul_(routing.probabilities).to(dtype);
}

at::Tensor all_weights(const Routing& routing, const at::Tensor& numbers) {
  const at::Tensor all = at::zeros(routing.probabilities.sizes(), numbers.options());
  return all.scatter(-1, routing.chosen, routing.weights.to(numbers.scalar_type()));
}

ExpertRows::ExpertRows(const at::Tensor& chosen, std::int64_t experts)
    : per_token_(chosen.size(-1)) {
  at::Tensor sorted;
  std::tie(sorted, order_) =
      at::sort(chosen.reshape({-1}), /*stable=*/true, /*dim=*/0, /*descending=*/false);
  tokens_ = at::floor_divide(order_, per_token_);
  at::Tensor places = at::empty_like(order_);
  places.scatter_(0, order_, at::arange(order_.numel(), order_.options()));
  places_ = places.view({-1, per_token_}).t().contiguous();
  ends_ = at::searchsorted(sorted, at::arange(experts, sorted.options()), /*out_int32=*/true,
                           /*right=*/true);
}

void ExpertRows::add_counts_to(const at::Tensor& counts) const {
  const std::int64_t later = counts.size(0) - 1;
  counts.add_(ends_);
  counts.narrow(0, 1, later).sub_(ends_.narrow(0, 0, later));
}

const std::vector<std::int64_t>& ExpertRows::ends_on_host() const {
  if (ends_on_host_.empty()) {
    const at::Tensor host = ends_.cpu();
    const auto* const end = host.const_data_ptr<std::int32_t>();
    ends_on_host_.assign(end, end + host.numel());
  }
  return ends_on_host_;
}

at::Tensor ExpertRows::gathered(const at::Tensor& of_tokens) const {
  return of_tokens.index_select(0, tokens_);
}

at::Tensor ExpertRows::gathered_weights(const at::Tensor& weights) const {
  return weights.reshape({-1}).index_select(0, order_).unsqueeze(1);
}

at::Tensor ExpertRows::marks(const at::Tensor& chosen, const at::Tensor& numbers) const {
  const at::Tensor of_rows = chosen.reshape({-1}).index_select(0, order_).unsqueeze(1);
  return at::zeros({of_rows.size(0), ends_.size(0)}, numbers.options()).scatter_(1, of_rows, 1);
}

at::Tensor ExpertRows::by_token(const at::Tensor& of_rows) const {
  return of_rows.index_select(0, places_.view({-1})).view({per_token_, -1}).t();
}

at::Tensor ExpertRows::summed(const at::Tensor& rows, const at::Tensor& weights) const {
  if (cuda_fuses(rows)) return fused_sum_of_rows(rows, places_, weights);
  at::Tensor sum;
  for (std::int64_t place = 0; place < per_token_; ++place) {
    const at::Tensor some = rows.index_select(0, places_.select(0, place));
    const at::Tensor weight = weights.defined() ? weights.narrow(1, place, 1) : weights;
    if (!sum.defined()) {
      sum = some.to(wide_type(rows));
      if (weight.defined()) sum = sum.mul(weight);
    } else if (weight.defined()) {
      sum.addcmul_(some, weight);
    } else {
      sum.add_(some);
    }
  }
  return sum.to(rows.scalar_type());
}

ExpertMatrices::ExpertMatrices(std::vector<at::Tensor> matrices, int parts)
    : matrices_(std::move(matrices)), parts_(parts) {
  if (defined()) stacked_ = stack_of(matrices_, parts);
}

const at::Tensor& ExpertMatrices::part(std::int64_t expert, int part) const {
  return matrices_[static_cast<std::size_t>(expert * parts_ + part)];
}

at::Tensor ExpertMatrices::of(std::int64_t expert) const {
  if (parts_ == 1) return part(expert, 0);
  if (stacked_.defined()) return stacked_.select(0, expert);
  return at::cat(at::TensorList(&part(expert, 0), static_cast<std::size_t>(parts_)));
}

at::Tensor expert_products(const at::Tensor& rows, const ExpertMatrices& matrices,
                           const ExpertRows& groups) {
  if (are_grouped(rows, matrices))
    return at::_grouped_mm(rows, matrices.stacked().transpose(1, 2), groups.ends());
  at::Tensor products = at::empty({rows.size(0), matrices.out()}, rows.options());
  groups.for_each([&](std::int64_t expert, std::int64_t first, std::int64_t count) {
    if (count == 0) return;
    products.narrow(0, first, count)
        .copy_(product(rows.narrow(0, first, count), matrices.of(expert).t()));
  });
  return products;
}

at::Tensor expert_input_gradient(const at::Tensor& grad_products, const ExpertMatrices& matrices,
                                 const ExpertRows& groups) {
  if (are_grouped(grad_products, matrices))
    return at::_grouped_mm(grad_products, matrices.stacked(), groups.ends());
  at::Tensor gradient = at::empty({grad_products.size(0), matrices.in()}, grad_products.options());
  groups.for_each([&](std::int64_t expert, std::int64_t first, std::int64_t count) {
    if (count == 0) return;
    gradient.narrow(0, first, count)
        .copy_(product(grad_products.narrow(0, first, count), matrices.of(expert)));
  });
  return gradient;
}

void put_expert_gradients(const ExpertMatrices& gradients, const at::Tensor& grad_products,
                          const at::Tensor& rows, const ExpertRows& groups, bool overwrite) {
  if (are_grouped(rows, gradients))
    return put_grouped_gradients(gradients, grad_products, rows, groups, overwrite);
  const auto put = overwrite ? &write_weight_gradient : &accumulate_weight_gradient;
  const std::int64_t width = gradients.part_width();
  groups.for_each([&](std::int64_t expert, std::int64_t first, std::int64_t count) {
    for (int part = 0; part < gradients.parts(); ++part) {
      const at::Tensor& gradient = gradients.part(expert, part);
      if (count > 0)
        put(gradient, grad_products.narrow(0, first, count).narrow(1, part * width, width),
            rows.narrow(0, first, count));
      else if (overwrite)
        gradient.zero_();
    }
  });
}

}  // namespace sluice::engine
