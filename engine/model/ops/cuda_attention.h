// ATen's fused causal attention on CUDA in 16-bit dtypes: FlashAttention, or cuDNN's where that is
// faster, from Hopper on, in sequences that fill it. FlashAttention always computes a deterministic
// backward; cuDNN's forward saves the same kind of sums for it. The two draw different dropout
// masks from one seed, so with dropout FlashAttention also computes a deterministic forward. It
// also computes attention with a window or documents, by its variable-length form.
#pragma once

#include <ATen/core/Tensor.h>

#include "engine/model/ops/attention.h"
#include "engine/model/ops/head_views.h"

namespace sluice::engine {

// From Ampere on, for heads of up to 128 numbers, in multiples of 8. Heads of up to 256 need a GPU
// with room for their backward pass, which may depend on whether it drops.
bool has_cuda_attention(const at::Tensor& query, std::int64_t head_dim, bool drops);

// Without sinks (attention_sinks.h), as all of this.
Attended cuda_attention(const HeadViews& heads, const AttentionOptions& options);
// See attend_last(); without sinks.
Attended cuda_attend_last(const HeadViews& heads, const AttentionOptions& options);

struct HeadGradients {
  at::Tensor query;  // each as [B, its heads, T, head_dim]
  at::Tensor key;
  at::Tensor value;
};
HeadGradients cuda_attention_backward(const at::Tensor& grad_heads, const HeadViews& heads,
                                      const Attended& attended, const AttentionOptions& options);

}  // namespace sluice::engine
