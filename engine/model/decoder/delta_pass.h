// DeltaPass: the first branch of a block with a gated delta rule in one call of it: norm, products,
// causal convolution, the rule, gated norm, product. The residual stream is the block's input plus
// this.
//
// Kept for backward: the norm's statistics, the products before the convolution, and the rule's
// output. The convolution, the decays and the gated norm are cheaper to recompute than to keep.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "engine/model/decoder/attention_pass.h"
#include "engine/model/decoder/block_pass.h"
#include "engine/model/ops/gated_delta_rule.h"

namespace sluice::engine {

class KvCache;

class DeltaPass {
 public:
  // All but numbers must outlive it.
  DeltaPass(const BlockPass& pass, const at::Tensor& input, std::int64_t layer);

  // `qkv` has all products, and `attended` the rule's output alone.
  using Kept = AttentionPass::Kept;

  // Returns the branch, without its dropout. `keep`: fills `kept`.
  at::Tensor forward(Kept& kept, bool keep) const;
  // Continues from the state in the cache, and leaves there that after the input.
  at::Tensor extend(KvCache& cache) const;
  // Returns the gradient of the block's input. `grad_middle`: that of the residual stream.
  at::Tensor backward(Kept kept, const at::Tensor& grad_middle, const UnitViews& gradients) const;

 private:
  // Views of the products' columns, or of their gradients'.
  struct Columns {
    at::Tensor qkv;
    at::Tensor gate;
    at::Tensor rate;
    at::Tensor decay;
  };
  Columns columns(const at::Tensor& products) const;
  at::Tensor normed_products(Kept& kept) const;
  at::Tensor rate(const Columns& columns) const;
  at::Tensor decay(const Columns& columns) const;
  DecayParameters decay_parameters(const UnitViews& of) const;
  at::Tensor gated(const at::Tensor& output, const Columns& columns) const;
  at::Tensor output_gradient(const Kept& kept, const Columns& columns,
                             const at::Tensor& grad_middle, const UnitViews& gradients) const;

  const BlockPass& pass_;
  const DeltaHeads& heads_;
  const at::Tensor& input_;
  std::int64_t layer_;
  BlockNorm norm_;
  ProductsPass products_;
  ProductsPass projection_;
};

}  // namespace sluice::engine
