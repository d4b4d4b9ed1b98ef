// Causal self-attention of packed queries, keys and values.
//
// ATen's fused kernels where they serve: on the CPU without dropout, in fp32 where it multiplies
// 16-bit numbers slowly (products.h); on CUDA from Ampere on in 16-bit dtypes (cuda_attention.h),
// where dropout is the kernel's own, from the same seed.
// Otherwise plain products and softmax in fp32, a bounded number of heads at a time, with the masks
// of dropout.h. Which of them, the shapes and options alone decide.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "engine/model/ops/attention_reach.h"
#include "engine/model/ops/dropout.h"
#include "engine/model/ops/head_views.h"

namespace sluice::engine {

struct AttentionOptions {
  HeadShape heads;
  AttentionReach reach;
  Dropout dropout;
  bool deterministic = false;
  std::optional<double> scale = {};  // of the scores; none: 1 / sqrt(head_dim)
};

struct Attended {
  at::Tensor output;  // [B, T, width of the queries]
  // For backward; undefined where the plain form was taken.
  at::Tensor logsumexp;
  at::Tensor philox_seed;
  at::Tensor philox_offset;
};

Attended attention(const HeadViews& heads, const AttentionOptions& options);

// The gradients of queries, keys and values side by side, as HeadViews finds them: [B, T,
// HeadShape::width()]. Their sums over all positions are added to bias_gradient (fp32; may be
// undefined).
at::Tensor attention_backward(const at::Tensor& grad_output, const HeadViews& heads,
                              const Attended& attended, const AttentionOptions& options,
                              const at::Tensor& bias_gradient);

// Of positions that see all keys, of which there may be more: [B, positions, width of the
// queries].
at::Tensor attend_all(const HeadViews& heads, std::optional<double> scale);

}  // namespace sluice::engine
