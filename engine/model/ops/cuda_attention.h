// ATen's fused causal attention on CUDA in 16-bit dtypes: FlashAttention, and cuDNN's where that is
// faster: from Hopper on, in sequences that fill it. A deterministic backward is always
// FlashAttention's, of whose sums cuDNN's forward leaves the same kind; as the two draw other masks
// of dropout from one seed, with dropout a deterministic forward is FlashAttention's, too. So is
// whatever has a window or documents: its form of variable length takes both.
#pragma once

#include <ATen/core/Tensor.h>

#include "engine/model/ops/attention.h"
#include "engine/model/ops/head_views.h"

namespace sluice::engine {

// From Ampere on, for heads of a multiple of 8 numbers up to 128.
bool has_cuda_attention(const at::Tensor& query, std::int64_t head_dim);

Attended cuda_attention(const HeadViews& heads, const AttentionOptions& options);

struct HeadGradients {
  at::Tensor query;  // each as [B, its heads, T, head_dim]
  at::Tensor key;
  at::Tensor value;
};
HeadGradients cuda_attention_backward(const at::Tensor& grad_heads, const HeadViews& heads,
                                      const Attended& attended, const AttentionOptions& options);

}  // namespace sluice::engine
