// DecoderBlock: a transformer block by its spec, pre-norm: attention or a gated delta rule, and a
// feed-forward, each added to the residual stream.
//
// Saved, per token, in the activations' dtype: queries, keys and values, attention's output, the
// residual stream between the branches, and the feed-forward before its activation or gate. Queries
// and keys are saved after the rotation, or before the norms of heads if there are any. Saved in
// fp32: statistics of each of two norms, and one number per head. Norms' outputs, the activation
// and, with norms of heads, the rotation are cheaper to recompute than to keep. If adapters are
// trained, the parameters end with theirs, and only these have gradients; the other gradients are
// undefined. With experts the router's logits are saved, and the experts' products before the gate.
// A shared expert adds its logit. With a gated delta rule its products and its output are saved
// instead of attention's.
//
// The feed-forward of many rows is computed in pieces (row_pieces.h). Then backward computes its
// middle again, piece by piece, and neither this nor the second norm's statistics are saved.
#pragma once

#include <cstdint>

#include "engine/model/decoder/block_pass.h"
#include "engine/model/decoder/block_rotary.h"
#include "engine/model/decoder/block_spec.h"
#include "engine/model/decoder/decoder_layout.h"
#include "engine/model/lora_recipe.h"
#include "engine/model/model_unit.h"

namespace sluice::engine {

class DecoderBlock final : public ModelUnit {
 public:
  // `spec`: of this layer (DecoderSpec::block_at()).
  DecoderBlock(const BlockSpec& spec, const LoraRecipe& lora, std::int64_t layer);

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
  std::int64_t keys_change_beyond() const override;

 private:
  BlockPass pass(const PassContext& context, const UnitViews& parameters,
                 const at::Tensor& input) const;

  BlockSpec spec_;
  BlockParameters places_;
  double adapter_scale_;
  double adapter_dropout_;
  std::int64_t layer_;
  BlockRotary rotary_;
};

}  // namespace sluice::engine
