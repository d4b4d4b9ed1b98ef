#include "engine/model/decoder/expert_adapters.h"

#include <ATen/ops/empty.h>

#include <utility>
#include <vector>

namespace sluice::engine {
namespace {

// `stacked`: [E, rows, columns].
ExpertMatrices matrices_of(const at::Tensor& stacked) { return {stacked.unbind(0), /*parts=*/1}; }

at::Tensor by_expert(const at::Tensor& a, std::int64_t experts) {
  return a.view({experts, -1, a.size(1)});
}

// B's rows, with those of gate and up one after the other: [out, r, E].
at::Tensor rows_apart(const at::Tensor& b, const ExpertAdapters::Form& form) {
  const at::Tensor rows = b.view({b.size(0), -1, form.experts});
  return form.in_turn ? rows.unflatten(0, {-1, 2}).transpose(0, 1).flatten(0, 1) : rows;
}

at::Tensor rows_in_turn(const at::Tensor& apart, const ExpertAdapters::Form& form) {
  return form.in_turn ? apart.unflatten(0, {2, -1}).transpose(0, 1).flatten(0, 1) : apart;
}

}  // namespace

ExpertAdapters::ExpertAdapters(const at::Tensor& a, const at::Tensor& b, const Form& form)
    : form_(form),
      a_(matrices_of(by_expert(a, form.experts))),
      b_(matrices_of(rows_apart(b, form).permute({2, 0, 1}).contiguous())) {}

at::Tensor ExpertAdapters::inner(const at::Tensor& rows, const ExpertRows& groups) const {
  return expert_products(rows, a_, groups).mul_(form_.scale);
}

void ExpertAdapters::add_to(const at::Tensor& output, const at::Tensor& rows,
                            const ExpertRows& groups) const {
  output.add_(expert_products(inner(rows, groups), b_, groups));
}

at::Tensor ExpertAdapters::inner_gradient(const at::Tensor& grad_output,
                                          const ExpertRows& groups) const {
  return expert_input_gradient(grad_output, b_, groups).mul_(form_.scale);
}

void ExpertAdapters::add_input_gradient(const at::Tensor& grad_rows, const at::Tensor& inner,
                                        const ExpertRows& groups) const {
  grad_rows.add_(expert_input_gradient(inner, a_, groups));
}

void ExpertAdapters::put_gradients(const Gradients& to, const at::Tensor& inner,
                                   const at::Tensor& grad_output, const at::Tensor& rows,
                                   const ExpertRows& groups) const {
  put_expert_gradients(matrices_of(by_expert(to.a, form_.experts)), inner, rows, groups,
                       to.overwrite);
  const at::Tensor of_b = at::empty({form_.experts, b_.out(), b_.in()}, to.b.options());
  put_expert_gradients(matrices_of(of_b), grad_output, this->inner(rows, groups), groups,
                       /*overwrite=*/true);
  const at::Tensor made = rows_in_turn(of_b.permute({1, 2, 0}), form_);
  const at::Tensor sum = to.b.view(made.sizes());
  if (to.overwrite)
    sum.copy_(made);
  else
    sum.add_(made);
}

}  // namespace sluice::engine
