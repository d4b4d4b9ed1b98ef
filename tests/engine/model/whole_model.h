// A model with all of its parameters and gradients in memory, for tests.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

#include "engine/families/make_model.h"
#include "engine/model/unit_views.h"

namespace sluice::engine {

class WholeModel {
 public:
  // Parameters of the options' dtype and device, zero; gradients fp32 (fp64 with fp64), zero. With
  // adapters those of the model itself have none.
  WholeModel(const ModelOptions& options, const at::TensorOptions& tensor_options);

  const Model& model() const { return model_; }
  // The head's end with the token embedding, which it borrows.
  const UnitViews& parameters(int unit) const { return parameters_[index(unit)]; }
  const UnitViews& gradients(int unit) const { return gradients_[index(unit)]; }
  // A unit's whole gradient, gaps and padding too.
  const at::Tensor& flat_gradient(int unit) const { return flat_gradients_[index(unit)]; }

  // In file order, unit by unit: the model's own, then adapters. Views have the parameter's own
  // shape, without padding; the gradient of what is frozen is undefined.
  using Visit = std::function<void(const ParameterSpec& spec, const at::Tensor& parameter,
                                   const at::Tensor& gradient)>;
  void for_each_parameter(const Visit& visit) const;
  void initialise(std::uint64_t seed) const;
  void zero_gradients() const;
  // The same parameters, converted.
  void copy_parameters_from(const WholeModel& other) const;

  // The input of the head; `saved` is filled unless null.
  at::Tensor forward(PassContext context, const at::Tensor& tokens, std::vector<Saved>* saved,
                     std::vector<at::Tensor>* inputs) const;
  at::Tensor logits(const PassContext& context, const at::Tensor& tokens,
                    std::int64_t positions) const;
  at::Tensor loss_sum(const PassContext& context, const at::Tensor& tokens,
                      const at::Tensor& targets) const;
  // Adds to the gradients; returns the loss' sum over all tokens.
  at::Tensor forward_backward(const PassContext& context, const at::Tensor& tokens,
                              const at::Tensor& targets, double grad_scale, bool recompute) const;

 private:
  static std::size_t index(int unit) { return static_cast<std::size_t>(unit); }

  std::unique_ptr<const Model> made_;
  const Model& model_;
  std::vector<at::Tensor> flat_gradients_;
  std::vector<UnitViews> parameters_;
  std::vector<UnitViews> gradients_;
};

}  // namespace sluice::engine
