// A model with all of its parameters and gradients in memory, for tests.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

#include "engine/families/make_model.h"
#include "engine/model/expert_load.h"
#include "engine/model/unit_views.h"

namespace sluice::engine {

class WholeModel {
 public:
  // Parameters are zero, with the options' dtype and device; gradients are zero in fp32 (fp64 with
  // fp64). With adapters, the model's own parameters have no gradients.
  WholeModel(const ModelOptions& options, const at::TensorOptions& tensor_options);

  const Model& model() const { return model_; }
  // The head's views end with the token embedding, which it borrows.
  const UnitViews& parameters(int unit) const { return parameters_[index(unit)]; }
  const UnitViews& gradients(int unit) const { return gradients_[index(unit)]; }
  // A unit's whole gradient, including gaps and padding.
  const at::Tensor& flat_gradient(int unit) const { return flat_gradients_[index(unit)]; }

  // In file order, unit by unit: the model's own parameters, then adapters. Views have the
  // parameter's own shape, without padding. The gradient of a frozen parameter is undefined.
  using Visit = std::function<void(const ParameterSpec& spec, const at::Tensor& parameter,
                                   const at::Tensor& gradient)>;
  void for_each_parameter(const Visit& visit) const;
  void initialise(std::uint64_t seed) const;
  void zero_gradients() const;
  // Copies the parameters, converted.
  void copy_parameters_from(const WholeModel& other) const;

  // Returns the input of the head; fills `saved` unless null.
  at::Tensor forward(PassContext context, const at::Tensor& tokens, std::vector<Saved>* saved,
                     std::vector<at::Tensor>* inputs, ExpertLoad* load = nullptr) const;
  at::Tensor logits(const PassContext& context, const at::Tensor& tokens,
                    std::int64_t positions) const;
  at::Tensor loss_sum(const PassContext& context, const at::Tensor& tokens,
                      const at::Tensor& targets) const;
  // Adds to the gradients; returns the sum of the loss over all tokens. `load`: counts experts, and
  // adds the balance loss, whose coefficient is load's, to what is differentiated; or null.
  at::Tensor forward_backward(const PassContext& context, const at::Tensor& tokens,
                              const at::Tensor& targets, double grad_scale, bool recompute,
                              ExpertLoad* load = nullptr) const;

 private:
  static std::size_t index(int unit) { return static_cast<std::size_t>(unit); }

  std::unique_ptr<const Model> made_;
  const Model& model_;
  std::vector<at::Tensor> flat_gradients_;
  std::vector<UnitViews> parameters_;
  std::vector<UnitViews> gradients_;
};

}  // namespace sluice::engine
