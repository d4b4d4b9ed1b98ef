// Causal self-attention of packed queries, keys and values.
//
// Uses ATen's fused kernels where possible. On the CPU that is without dropout, in fp32 if it
// multiplies 16-bit numbers slowly (products.h). On CUDA it is from Ampere on in 16-bit dtypes
// (cuda_attention.h), with the kernel's own dropout from the same seed.
// Otherwise it uses plain products and softmax in fp32, a bounded number of heads at a time, with
// the masks of dropout.h. The choice depends only on shapes and options.
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
  // For backward; undefined after plain attention.
  at::Tensor logsumexp;
  at::Tensor philox_seed;
  at::Tensor philox_offset;
};

Attended attention(const HeadViews& heads, const AttentionOptions& options);

// Returns the packed gradients of queries, keys and values, in the order of HeadViews: [B, T,
// HeadShape::width()]. Their sums over all positions are added to bias_gradient (fp32; may be
// undefined).
at::Tensor attention_backward(const at::Tensor& grad_output, const HeadViews& heads,
                              const Attended& attended, const AttentionOptions& options,
                              const at::Tensor& bias_gradient);

// Attention without a mask; there may be more keys than positions: [B, positions, width of the
// queries].
at::Tensor attend_all(const HeadViews& heads, std::optional<double> scale);

}  // namespace sluice::engine
