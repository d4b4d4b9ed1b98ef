// Gpt2Embedding: token plus position embedding, then dropout. Input: token ids [B, T].
#pragma once

#include "engine/model/model_shape.h"
#include "engine/model/model_unit.h"

namespace sluice::engine {

class Gpt2Embedding final : public ModelUnit {
 public:
  Gpt2Embedding(const ModelShape& shape, std::int64_t padded_vocab);

  at::Tensor forward(const PassContext& context, const UnitViews& parameters,
                     const at::Tensor& input, Saved* saved) const override;
  void recompute(const PassContext& context, const UnitViews& parameters, const at::Tensor& input,
                 Saved& saved) const override;
  at::Tensor backward(const PassContext& context, const UnitViews& parameters,
                      const at::Tensor& input, Saved& saved, const at::Tensor& grad_output,
                      const UnitViews& gradients) const override;
  at::Tensor extend(const UnitViews& parameters, const at::Tensor& input,
                    KvCache& cache) const override;

 private:
  double dropout_;
};

}  // namespace sluice::engine
