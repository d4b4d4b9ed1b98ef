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
  const ModelLayout& model = model_.layout();
  const auto zeros = [](const UnitLayout& layout, const at::TensorOptions& of) {
    return at::zeros({static_cast<std::int64_t>(layout.slot_elements)}, of);
  };
  std::vector<UnitViews> own_gradients;
  for (int unit = 0; unit < model_.units(); ++unit) {
    const UnitLayout& layout = model_.layout(unit);
    const UnitLayout& base = model.base_layout(unit);
    parameters_.emplace_back(base, zeros(base, tensor_options));
    if (model.has_frozen())
      parameters_.back() =
          with_adapters(parameters_.back(), UnitViews(layout, zeros(layout, tensor_options)));
    flat_gradients_.push_back(zeros(layout, tensor_options.dtype(gradient_dtype)));
    own_gradients.emplace_back(layout, flat_gradients_.back());
  }
  for (int unit = 0; unit < model_.units(); ++unit) {
    std::vector<const UnitViews*> parameters;
    for (const int lender : model.lenders(unit)) parameters.push_back(&parameters_[index(lender)]);
    parameters_[index(unit)] = with_borrowed(model, unit, parameters_[index(unit)], parameters);
    UnitViews borrowed;  // views into the lender's gradient, which works for a single pass
    if (!model.has_frozen())
      for (const BorrowedParameter& it : model.borrowed(unit))
        borrowed.append(own_gradients[index(it.unit)][it.parameter]);
    gradients_.push_back(gradient_views(model, unit, own_gradients[index(unit)], borrowed));
  }
}

void WholeModel::for_each_parameter(const Visit& visit) const {
  const ModelLayout& model = model_.layout();
  for (int unit = 0; unit < model_.units(); ++unit) {
    std::vector<ParameterSpec> specs = model.base_layout(unit).parameters;
    if (model.has_frozen()) {
      const std::vector<ParameterSpec>& adapters = model.layout(unit).parameters;
      specs.insert(specs.end(), adapters.begin(), adapters.end());
    }
    for (int i = 0; i < static_cast<int>(specs.size()); ++i) {
      const ParameterSpec& spec = specs[index(i)];
      const at::Tensor& gradient = gradients(unit)[i];
      visit(spec, parameters(unit)[i].narrow(0, 0, spec.shape[0]),
            gradient.defined() ? gradient.narrow(0, 0, spec.shape[0]) : gradient);
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
                               std::vector<Saved>* saved, std::vector<at::Tensor>* inputs,
                               ExpertLoad* load) const {
  at::Tensor x = tokens;
  for (int unit = 0; unit < model_.head_index(); ++unit) {
    context.unit = unit;
    if (inputs != nullptr) inputs->push_back(x);
    Saved* const keep = saved == nullptr ? nullptr : &saved->emplace_back();
    if (load != nullptr) context.routed = load->counted(unit, 0);
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
                                        bool recompute, ExpertLoad* load) const {
  std::vector<Saved> saved;
  std::vector<at::Tensor> inputs;
  const at::Tensor x = forward(context, tokens, recompute ? nullptr : &saved, &inputs, load);
  if (load != nullptr) load->end_forward(1, tokens.numel(), /*scale=*/1);
  const int head = model_.head_index();
  const HeadUnit::Loss loss =
      model_.head().loss_and_gradient(parameters(head), x, targets, grad_scale, gradients(head));
  at::Tensor grad = loss.grad_input;
  PassContext here = context;
  for (int unit = head - 1; unit >= 0; --unit) {
    here.unit = unit;
    if (load != nullptr) here.balance_gradient = load->gradient(unit, 0);
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
