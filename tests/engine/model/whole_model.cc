#include "tests/engine/model/whole_model.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <span>

#include "engine/families/make_model.h"
#include "engine/model/initial_values.h"

namespace sluice::engine {

WholeModel::WholeModel(const ModelOptions& options, const at::TensorOptions& tensor_options)
    : made_(make_model(options)), model_(*made_) {
  const at::ScalarType dtype = c10::typeMetaToScalarType(tensor_options.dtype());
  const at::ScalarType gradient_dtype = dtype == at::kDouble ? at::kDouble : at::kFloat;
  for (int unit = 0; unit < model_.units(); ++unit) {
    const UnitLayout& layout = model_.layout(unit);
    const auto elements = static_cast<std::int64_t>(layout.slot_elements);
    parameters_.emplace_back(layout, at::zeros({elements}, tensor_options));
    flat_gradients_.push_back(at::zeros({elements}, tensor_options.dtype(gradient_dtype)));
    gradients_.emplace_back(layout, flat_gradients_.back());
  }
  const int head = model_.head_index();
  std::vector<const UnitViews*> parameters;
  std::vector<const UnitViews*> gradients;
  for (const int lender : model_.layout().lenders(head)) {
    parameters.push_back(&parameters_[index(lender)]);
    gradients.push_back(&gradients_[index(lender)]);
  }
  parameters_.back() = with_borrowed(model_.layout(), head, parameters_.back(), parameters);
  gradients_.back() = with_borrowed(model_.layout(), head, gradients_.back(), gradients);
}

void WholeModel::for_each_parameter(const Visit& visit) const {
  for (int unit = 0; unit < model_.units(); ++unit) {
    const UnitLayout& layout = model_.layout(unit);
    for (int i = 0; i < static_cast<int>(layout.parameters.size()); ++i) {
      const ParameterSpec& spec = layout.parameters[index(i)];
      visit(spec, parameters(unit)[i].narrow(0, 0, spec.shape[0]),
            gradients(unit)[i].narrow(0, 0, spec.shape[0]));
    }
  }
}

void WholeModel::initialise(std::uint64_t seed) const {
  for_each_parameter([seed](const ParameterSpec& spec, const at::Tensor& parameter,
                            const at::Tensor& /*gradient*/) {
    const at::Tensor values = at::empty(spec.shape, at::TensorOptions().dtype(at::kFloat));
    fill_initial(spec, seed, 0, std::span(values.mutable_data_ptr<float>(), spec.elements));
    parameter.copy_(values);
  });
}

void WholeModel::zero_gradients() const {
  for (at::Tensor gradient : flat_gradients_) gradient.zero_();
}

void WholeModel::copy_parameters_from(const WholeModel& other) const {
  for (int unit = 0; unit < model_.units(); ++unit) {
    for (int i = 0; i < parameters(unit).size(); ++i) {
      parameters(unit)[i].copy_(other.parameters(unit)[i]);
    }
  }
}

at::Tensor WholeModel::forward(PassContext context, const at::Tensor& tokens,
                               std::vector<Saved>* saved, std::vector<at::Tensor>* inputs) const {
  at::Tensor x = tokens;
  for (int unit = 0; unit < model_.head_index(); ++unit) {
    context.unit = unit;
    if (inputs != nullptr) inputs->push_back(x);
    Saved* const keep = saved == nullptr ? nullptr : &saved->emplace_back();
    x = model_.unit(unit).forward(context, parameters(unit), x, keep);
  }
  return x;
}

at::Tensor WholeModel::logits(const PassContext& context, const at::Tensor& tokens,
                              std::int64_t positions) const {
  return model_.head().logits(parameters(model_.head_index()),
                              forward(context, tokens, nullptr, nullptr), positions);
}

at::Tensor WholeModel::loss_sum(const PassContext& context, const at::Tensor& tokens,
                                const at::Tensor& targets) const {
  return model_.head().loss_sum(parameters(model_.head_index()),
                                forward(context, tokens, nullptr, nullptr), targets);
}

at::Tensor WholeModel::forward_backward(const PassContext& context, const at::Tensor& tokens,
                                        const at::Tensor& targets, double grad_scale,
                                        bool recompute) const {
  std::vector<Saved> saved;
  std::vector<at::Tensor> inputs;
  const at::Tensor x = forward(context, tokens, recompute ? nullptr : &saved, &inputs);
  const int head = model_.head_index();
  const HeadUnit::Loss loss =
      model_.head().loss_and_gradient(parameters(head), x, targets, grad_scale, gradients(head));
  at::Tensor grad = loss.grad_input;
  PassContext here = context;
  for (int unit = head - 1; unit >= 0; --unit) {
    here.unit = unit;
    const at::Tensor& input = inputs[index(unit)];
    Saved again;
    if (recompute) model_.unit(unit).recompute(here, parameters(unit), input, again);
    grad =
        model_.unit(unit).backward(here, parameters(unit), input,
                                   recompute ? again : saved[index(unit)], grad, gradients(unit));
  }
  return loss.loss_sum;
}

}  // namespace sluice::engine
