// DecoderEmbedding: token ids [B, T] to rows of the token embedding, perhaps scaled, plus learned
// positions if there are any, then dropout.
#pragma once

#include "engine/model/decoder/block_spec.h"
#include "engine/model/model_unit.h"

namespace sluice::engine {

class DecoderEmbedding final : public ModelUnit {
 public:
  DecoderEmbedding(const DecoderSpec& spec, std::int64_t padded_vocab);

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
  int token_;
  bool has_positions_;
  at::Tensor rows(const at::Tensor& table, const at::Tensor& tokens) const;

  double scale_;
  double dropout_;
};

}  // namespace sluice::engine
