// LlamaEmbedding: token ids [B, T] to rows of the token embedding.
#pragma once

#include "engine/model/llama/llama_shape.h"
#include "engine/model/model_unit.h"

namespace sluice::engine {

class LlamaEmbedding final : public ModelUnit {
 public:
  LlamaEmbedding(const LlamaShape& shape, std::int64_t padded_vocab);

  at::Tensor forward(const PassContext& context, const UnitViews& parameters,
                     const at::Tensor& input, Saved* saved) const override;
  void recompute(const PassContext& context, const UnitViews& parameters, const at::Tensor& input,
                 Saved& saved) const override;
  at::Tensor backward(const PassContext& context, const UnitViews& parameters,
                      const at::Tensor& input, Saved& saved, const at::Tensor& grad_output,
                      const UnitViews& gradients) const override;
  at::Tensor extend(const UnitViews& parameters, const at::Tensor& input,
                    KvCache& cache) const override;
};

}  // namespace sluice::engine
