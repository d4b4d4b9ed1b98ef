// AttentionPass: the first branch of a block in one call of it: norm, product, rotary positions,
// attention, product. The residual stream is the block's input plus this.
//
// Without dropout, attention of many rows is computed some heads at a time
// (AttentionSpec::in_parts, row_pieces.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>

#include "engine/model/decoder/block_pass.h"
#include "engine/model/decoder/block_rotary.h"
#include "engine/model/ops/attention.h"
#include "engine/model/ops/head_views.h"
#include "engine/model/ops/layer_norm.h"
#include "engine/model/ops/rotary.h"

namespace sluice::engine {

class KvCache;

class AttentionPass {
 public:
  // `first`: the position of the input's first token. All but numbers must outlive it.
  AttentionPass(const BlockPass& pass, const BlockRotary& rotary, const at::Tensor& input,
                std::int64_t layer, std::int64_t first = 0);

  // For backward.
  struct Kept {
    Normed norm;      // without its output
    at::Tensor qkv;   // after the rotation; with norms of heads, before these
    at::Tensor gate;  // of the output; undefined without one
    Attended attended;
    at::Tensor branch;       // before its norm; undefined without one
    at::Tensor branch_rstd;  // the norm's
  };

  // Returns the branch, without its dropout. `keep`: fills `kept`.
  at::Tensor forward(Kept& kept, bool keep) const;
  // Attends to the positions in the cache, and appends those of the input to it.
  at::Tensor extend(KvCache& cache) const;
  // Returns the gradient of the block's input. `grad_middle`: that of the residual stream.
  at::Tensor backward(Kept kept, const at::Tensor& grad_middle, const UnitViews& gradients) const;

 private:
  at::Tensor normed_product(Kept& kept) const;
  at::Tensor without_gate(const at::Tensor& product, Kept& kept) const;
  at::Tensor with_gate(const at::Tensor& gradient, const at::Tensor& grad_gate) const;
  HeadViews turned(at::Tensor& qkv) const;
  HeadViews turned_heads(const at::Tensor& packed, const HeadShape& heads) const;
  template <typename Visit>
  void for_each_part(const Visit& visit) const;
  Attended attend_in_parts(at::Tensor& qkv) const;
  at::Tensor normed_branch(at::Tensor branch, Kept* kept) const;
  at::Tensor branch_gradient(Kept& kept, const at::Tensor& grad_middle,
                             const UnitViews& gradients) const;
  at::Tensor attended_gradient(const at::Tensor& attended, const at::Tensor& gate,
                               const at::Tensor& grad_branch, const UnitViews& gradients) const;
  at::Tensor backward_whole(Kept& kept, const at::Tensor& grad_middle,
                            const UnitViews& gradients) const;
  at::Tensor backward_in_parts(Kept& kept, const at::Tensor& grad_middle,
                               const UnitViews& gradients) const;
  void norm_heads_backward(at::Tensor& gradient, const at::Tensor& packed, const HeadShape& heads,
                           const UnitViews& gradients) const;
  bool sums_bias_with_heads() const;
  // The part's slice of the sinks, or of their gradient; undefined if these are.
  at::Tensor sinks_of(const at::Tensor& of_all, std::int64_t part) const;
  HeadNorms head_norms() const;
  Rotary rotary(const HeadShape& heads) const;

  const BlockPass& pass_;
  const at::Tensor& input_;
  std::int64_t layer_;
  BlockNorm norm_;
  ProductsPass qkv_;
  ProductsPass projection_;
  AttentionOptions options_;
  std::int64_t parts_ = 1;
  bool turns_;  // whether there are rotary positions, which have the rest
  RotaryStart start_;
  RotaryFrequencies frequencies_;
  at::Tensor of_rows_;
  std::array<at::Tensor, 2> head_factors_;  // of the norms of queries and keys
};

}  // namespace sluice::engine
