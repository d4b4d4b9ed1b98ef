// LlamaBlock: one transformer block of a Llama, pre-norm: attention with rotary positions and
// shared keys, and a gated feed-forward, each added to the residual stream.
//
// Saved, per token, in the activations' dtype: queries, keys and values, attention's output, the
// residual stream between the branches, and the feed-forward before its gate. Queries and keys are
// saved after the rotation, or before the norms of heads if there are any. Saved in fp32: a
// statistic of each of two norms, and one number per head. Norms' outputs, the gate and, with norms
// of heads, the rotation are cheaper to recompute than to keep. If adapters are trained, the
// parameters end with theirs, and only these have gradients; the other gradients are undefined.
//
// The feed-forward of many rows is computed in pieces (row_pieces.h), and attention in parts. Then
// backward computes the feed-forward's middle again, piece by piece. Neither this nor the second
// norm's statistics are saved.
#pragma once

#include "engine/model/llama/llama_layout.h"
#include "engine/model/llama/llama_shape.h"
#include "engine/model/model_unit.h"
#include "engine/model/ops/head_views.h"
#include "engine/model/rotary_frequencies.h"

namespace sluice::engine {

class LlamaBlock final : public ModelUnit {
 public:
  LlamaBlock(const LlamaShape& shape, const LoraRecipe& lora, std::int64_t layer);

  at::Tensor forward(const PassContext& context, const UnitViews& parameters,
                     const at::Tensor& input, Saved* saved) const override;
  void recompute(const PassContext& context, const UnitViews& parameters, const at::Tensor& input,
                 Saved& saved) const override;
  at::Tensor backward(const PassContext& context, const UnitViews& parameters,
                      const at::Tensor& input, Saved& saved, const at::Tensor& grad_output,
                      const UnitViews& gradients) const override;
  at::Tensor extend(const UnitViews& parameters, const at::Tensor& input,
                    KvCache& cache) const override;
  bool keys_depend_on_length(std::int64_t tokens) const override;

 private:
  class Pass;

  // The frequencies for documents of this many tokens.
  RotaryFrequencies frequencies_at(std::int64_t tokens) const;
  // Each token's frequencies, if they depend on the length of its document; else undefined.
  at::Tensor frequencies_of(const Documents* documents, at::Device device) const;

  LlamaShape shape_;
  BlockParameters indices_;
  double adapter_scale_;
  double adapter_dropout_;
  HeadShape heads_;
  std::int64_t layer_;
  std::int64_t window_;            // 0: none
  RotaryFrequencies frequencies_;  // for sequences within the model's context
};

}  // namespace sluice::engine
