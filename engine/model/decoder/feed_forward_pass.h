// FeedForwardPass: the second branch of a block in one call of it: norm, product, activation (or
// gate), product; or norm and experts. The block's output is the residual stream plus this.
//
// Many rows are computed in pieces (row_pieces.h). Then nothing is kept: backward computes the
// middle again, piece by piece.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "engine/model/decoder/block_pass.h"
#include "engine/model/decoder/experts_pass.h"
#include "engine/model/ops/layer_norm.h"

namespace sluice::engine {

class FeedForwardPass {
 public:
  explicit FeedForwardPass(const BlockPass& pass)
      : pass_(pass), norm_(pass.norm(pass.places.norm2)) {
    if (pass.spec.experts.exist()) experts_.emplace(pass.spec.experts, pass.places, pass.w);
  }

  // For backward. Undefined in pieces.
  struct Kept {
    Normed norm;                  // without its output
    at::Tensor inner;             // before the activation; with a gate, both
    ExpertsPass::Middle experts;  // instead of `inner`
  };

  // Replaces attention's branch by the residual stream between the branches: its own dropout plus
  // the block's input. Computes up to the activation.
  Kept begin(at::Tensor& middle, const at::Tensor& input) const;
  // The block's output. Frees what was kept, unless it was saved.
  at::Tensor finish(Kept kept, const at::Tensor& middle) const;
  // Returns the gradient of `middle`, perhaps in its memory.
  at::Tensor backward(Kept kept, at::Tensor middle, const at::Tensor& grad_output,
                      const UnitViews& gradients) const;

 private:
  // All rows, or a piece.
  struct Rows {
    const at::Tensor& middle;
    const at::Tensor& grad_output;
    at::Tensor dropped;  // grad_output after dropout
    std::int64_t first = 0;
  };

  ProductsPass in_from(std::int64_t first_row) const {
    return pass_.products(pass_.places.mlp_in, first_row);
  }
  ProductsPass out_from(std::int64_t first_row) const {
    return pass_.products(pass_.places.mlp_out, first_row);
  }
  Kept kept_of(Normed normed, std::int64_t first_row) const;
  at::Tensor activated(const at::Tensor& inner) const;
  // The branch before its dropout. Frees what was kept, unless it was saved.
  at::Tensor output_of(Kept kept, std::int64_t first_row) const;
  void activated_backward(at::Tensor& inner, at::Tensor& gradient,
                          const UnitViews& gradients) const;
  at::Tensor output_in_pieces(const at::Tensor& middle) const;
  at::Tensor backward_of(Rows rows, Kept kept, const UnitViews& gradients) const;
  void norm_backward(Rows& rows, const at::Tensor& inner, const UnitViews& gradients) const;
  // Return the gradient of the norm's output.
  at::Tensor dense_backward(Rows& rows, at::Tensor inner, const UnitViews& gradients) const;
  at::Tensor experts_backward(Rows& rows, ExpertsPass::Middle experts,
                              const UnitViews& gradients) const;

  const BlockPass& pass_;
  BlockNorm norm_;
  std::optional<ExpertsPass> experts_;
};

}  // namespace sluice::engine
