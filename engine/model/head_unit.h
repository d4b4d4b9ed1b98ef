// HeadUnit: the final norm, the output projection and the cross-entropy, in chunks of rows, so
// that the logits of a micro-batch never stand whole in memory. Contracts of dtypes, devices and
// bits: model_unit.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "engine/model/gpt_shape.h"
#include "engine/model/model_unit.h"

namespace sluice::engine {

class HeadUnit {
 public:
  // `chunk_rows`: 0 chooses by the model's shape and the kind of device alone, never by a budget.
  explicit HeadUnit(const GptShape& shape, std::int64_t chunk_rows = 0);

  const UnitLayout& layout() const { return layout_; }
  std::int64_t chunk_rows(at::Device device) const;

  struct Loss {
    at::Tensor loss_sum;    // over all tokens, nats; float64 scalar on the input's device
    at::Tensor grad_input;  // [B, T, C]
  };
  // `parameters` and `gradients` end with what the head borrows (ModelLayout): kOutput is the token
  // embedding, [padded_vocab, C], whose rows from the vocabulary on are zero and take no part.
  // Gradients are those of grad_scale * loss_sum. A target outside the vocabulary throws on the CPU
  // and makes the loss NaN on CUDA.
  Loss loss_and_gradient(const UnitViews& parameters, const at::Tensor& input,
                         const at::Tensor& targets, double grad_scale,
                         const UnitViews& gradients) const;
  // The same loss_sum, without gradients.
  at::Tensor loss_sum(const UnitViews& parameters, const at::Tensor& input,
                      const at::Tensor& targets) const;
  // Of the last `positions` of each sequence: [B, positions, vocab].
  at::Tensor logits(const UnitViews& parameters, const at::Tensor& input,
                    std::int64_t positions) const;

 private:
  std::int64_t vocab_;
  std::int64_t chunk_rows_;
  UnitLayout layout_;
};

}  // namespace sluice::engine
