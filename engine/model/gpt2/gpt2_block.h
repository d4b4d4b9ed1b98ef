// Gpt2Block: one transformer block of GPT-2, pre-norm: attention and feed-forward, each added to
// the residual stream after dropout.
//
// Saved, per token: 5 hidden + ffn numbers of the activations' dtype, fp32 statistics of two norms,
// and one fp32 per head. The numbers are packed queries, keys and values; attention's output; the
// residual stream between the branches; and the feed-forward before its activation. Norms' outputs
// and the activation are cheaper to recompute than to keep.
//
// The feed-forward of many rows is computed in pieces (row_pieces.h). Then backward computes its
// middle again, piece by piece, and neither this nor the second norm's statistics are saved.
#pragma once

#include "engine/model/gpt2/gpt2_shape.h"
#include "engine/model/model_shape.h"
#include "engine/model/model_unit.h"
#include "engine/model/ops/attention.h"
#include "engine/model/ops/head_views.h"
#include "engine/model/row_pieces.h"

namespace sluice::engine {

class Gpt2Block final : public ModelUnit {
 public:
  // `piece_rows`: smaller only in tests.
  Gpt2Block(const ModelShape& shape, std::int64_t layer, std::int64_t piece_rows = kPieceRows);

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
  RowPieces pieces(const at::Tensor& input) const;
  AttentionOptions attention_options(const PassContext& context) const;

  std::int64_t layer_;
  HeadShape heads_;
  double dropout_;
  Gpt2Variant variant_;
  std::int64_t piece_rows_;
};

}  // namespace sluice::engine
