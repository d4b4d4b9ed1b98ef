// LlamaHead: the final norm, the output projection and the cross-entropy, in chunks of rows.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "engine/model/head_unit.h"
#include "engine/model/llama/llama_layout.h"
#include "engine/model/llama/llama_shape.h"
#include "engine/model/ops/output_loss.h"

namespace sluice::engine {

class LlamaHead final : public HeadUnit {
 public:
  // `chunk_rows`: 0 chooses by the model's shape and the kind of device alone, never by a budget.
  explicit LlamaHead(const LlamaShape& shape, std::int64_t chunk_rows = 0);

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
  double epsilon_;
  HeadParameters indices_;
};

}  // namespace sluice::engine
