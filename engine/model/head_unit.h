// HeadUnit: the last unit of a model, from the blocks' output to the loss. For dtypes, devices and
// bits see model_unit.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "engine/model/unit_views.h"

namespace sluice::engine {

class HeadUnit {
 public:
  HeadUnit() = default;
  virtual ~HeadUnit() = default;
  HeadUnit(const HeadUnit&) = delete;
  HeadUnit& operator=(const HeadUnit&) = delete;

  struct Loss {
    at::Tensor loss_sum;    // over all tokens, nats; float64 scalar on the input's device
    at::Tensor grad_input;  // [B, T, C]
  };
  // `parameters` and `gradients` end with what the head borrows (ModelLayout). Gradients are those
  // of grad_scale * loss_sum. A target outside the vocabulary throws on the CPU and makes the loss
  // NaN on CUDA.
  virtual Loss loss_and_gradient(const UnitViews& parameters, const at::Tensor& input,
                                 const at::Tensor& targets, double grad_scale,
                                 const UnitViews& gradients) const = 0;
  // The same loss_sum, without gradients.
  virtual at::Tensor loss_sum(const UnitViews& parameters, const at::Tensor& input,
                              const at::Tensor& targets) const = 0;
  // Each target's share of loss_sum: [B, T], fp32 (float64 for float64), 0 for ignored targets.
  virtual at::Tensor token_losses(const UnitViews& parameters, const at::Tensor& input,
                                  const at::Tensor& targets) const = 0;
  // Logits of the last `positions` of each sequence: [B, positions, vocab].
  virtual at::Tensor logits(const UnitViews& parameters, const at::Tensor& input,
                            std::int64_t positions) const = 0;
};

}  // namespace sluice::engine
