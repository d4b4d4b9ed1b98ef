// Causal attention by plain products and a softmax in fp32 (float64 for float64). It computes a
// bounded number of heads at a time, so that the probabilities are never in memory as a whole.
// Backward recomputes them. The arithmetic and masks are the same on CPU and CUDA.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "engine/model/ops/attention_reach.h"
#include "engine/model/ops/dropout.h"
#include "engine/model/ops/head_views.h"

namespace sluice::engine {

struct PlainAttentionOptions {
  AttentionReach reach = {};
  Dropout dropout = {};
  std::optional<double> scale = {};  // of the scores; none: 1 / sqrt(head_dim)
};

// Returns [B, T, width of the queries].
at::Tensor plain_attention(const HeadViews& heads, const PlainAttentionOptions& options);
// Writes the gradients of queries, keys and values.
void plain_attention_backward(const at::Tensor& grad_heads, const HeadViews& heads,
                              const PlainAttentionOptions& options, const HeadViews& gradients);

}  // namespace sluice::engine
