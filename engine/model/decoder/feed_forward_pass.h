// FeedForwardPass: the second branch of a block in one call of it: norm, product, activation (or
// gate), product; or norm and experts. The block's output is the residual stream plus this. The
// dense feed-forward can also be a shared expert, whose output is added to that of the others.
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
    if (pass.spec.experts.exist())
      experts_.emplace(pass.spec.experts, pass.places, pass.w, pass.adapters.scale);
  }

  // For backward. Undefined in pieces.
  struct Kept {
    Normed norm;       // without its output
    at::Tensor inner;  // before the activation; with a gate, both
    ExpertsPass::Middle experts;
    at::Tensor shared_logit;  // [..., 1]
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
  ProductsPass logit_from(std::int64_t first_row) const {
    return pass_.products(pass_.places.shared_logit, first_row);
  }
  bool overwrites(const Rows& rows) const { return pass_.context.overwrites && rows.first == 0; }
  Kept kept_of(Normed normed, std::int64_t first_row) const;
  at::Tensor activated(const at::Tensor& inner) const;
  // The branch before its dropout. Frees what was kept, unless it was saved.
  at::Tensor output_of(Kept kept, std::int64_t first_row) const;
  void activated_backward(at::Tensor& inner, at::Tensor& gradient,
                          const UnitViews& gradients) const;
  at::Tensor output_in_pieces(const at::Tensor& middle) const;
  at::Tensor backward_of(Rows rows, Kept kept, const UnitViews& gradients) const;
  void norm_backward(Rows& rows, const at::Tensor& inner, const UnitViews& gradients) const;
  // Through the last product and the activation: `inner` becomes its gradient. Returns for each row
  // of a shared expert the product of its output and `grad_output`, in fp32 (or fp64).
  at::Tensor out_backward(const Rows& rows, const at::Tensor& grad_output, at::Tensor& inner,
                          const UnitViews& gradients) const;
  // Through products of the norm's output, `input`. Returns its gradient.
  at::Tensor in_backward(const Rows& rows, const ProductsPass& products,
                         const at::Tensor& grad_products, at::Tensor input,
                         const UnitViews& gradients) const;
  // Return the gradient of the norm's output.
  at::Tensor dense_backward(Rows& rows, at::Tensor inner, const UnitViews& gradients) const;
  at::Tensor experts_backward(Rows& rows, Kept& kept, const UnitViews& gradients) const;
  // Adds the shared expert's part to `grad_input`.
  void shared_backward(const Rows& rows, Kept& kept, const at::Tensor& input,
                       at::Tensor& grad_input, const UnitViews& gradients) const;

  const BlockPass& pass_;
  BlockNorm norm_;
  std::optional<ExpertsPass> experts_;
};

}  // namespace sluice::engine
