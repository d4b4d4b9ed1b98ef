// DecoderHead: the final norm, the output projection and the cross-entropy, in chunks of rows, so
// that a micro-batch's logits are never in memory as a whole. For dtypes, devices and bits see
// model_unit.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "engine/model/decoder/block_norm.h"
#include "engine/model/decoder/block_spec.h"
#include "engine/model/head_unit.h"
#include "engine/model/ops/layer_norm.h"
#include "engine/model/ops/output_loss.h"

namespace sluice::engine {

class DecoderHead final : public HeadUnit {
 public:
  // `chunk_rows`: 0 chooses by the model's shape and the kind of device alone, never by a budget.
  explicit DecoderHead(const DecoderSpec& spec, std::int64_t chunk_rows = 0);

  std::int64_t chunk_rows(at::Device device) const;

  // A borrowed output projection is the token embedding, [padded_vocab, C], whose rows past the
  // vocabulary are zero and do not take part.
  Loss loss_and_gradient(const UnitViews& parameters, const at::Tensor& input,
                         const at::Tensor& targets, double grad_scale,
                         const UnitViews& gradients) const override;
  at::Tensor loss_sum(const UnitViews& parameters, const at::Tensor& input,
                      const at::Tensor& targets) const override;
  at::Tensor token_losses(const UnitViews& parameters, const at::Tensor& input,
                          const at::Tensor& targets) const override;
  at::Tensor logits(const UnitViews& parameters, const at::Tensor& input,
                    std::int64_t positions) const override;

 private:
  OutputLossOptions loss_options(at::Device device, double grad_scale) const;

  std::int64_t vocab_;
  std::int64_t chunk_rows_;
  double logit_cap_;
  int output_;  // the place of the projection
  BlockNorm norm_;
};

}  // namespace sluice::engine
