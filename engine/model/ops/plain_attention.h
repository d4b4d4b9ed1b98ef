// Causal attention by plain products and a softmax in fp32 (float64 for float64), a bounded number
// of heads at a time, so that the probabilities never stand whole in memory. Backward computes them
// again. Same arithmetic and masks on CPU and CUDA.
#pragma once

#include <ATen/core/Tensor.h>

#include "engine/model/ops/dropout.h"

namespace sluice::engine {

// Queries, keys and values inside a packed [B, T, 3 C], each as [B, heads, T, head_dim].
struct HeadViews {
  HeadViews(const at::Tensor& qkv, std::int64_t heads);
  at::Tensor query;
  at::Tensor key;
  at::Tensor value;
};

// [B, T, C] as [B, heads, T, head_dim], and back; no copy where the memory allows.
at::Tensor split_heads(const at::Tensor& merged, std::int64_t heads);
at::Tensor merge_heads(const at::Tensor& split);

// [B, T, C].
at::Tensor plain_attention(const HeadViews& heads, const Dropout& dropout);
// Writes the gradients of queries, keys and values.
void plain_attention_backward(const at::Tensor& grad_heads, const HeadViews& heads,
                              const Dropout& dropout, const HeadViews& gradients);

}  // namespace sluice::engine
