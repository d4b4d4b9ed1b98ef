// Causal self-attention of packed queries, keys and values, scale 1 / sqrt(head_dim).
//
// ATen's fused kernels where they serve: on the CPU without dropout; on CUDA from Ampere on in
// 16-bit dtypes (cuda_attention.h), where dropout is the kernel's own, from the same seed.
// Otherwise plain products and softmax in fp32, a bounded number of heads at a time, with the masks
// of dropout.h.
#pragma once

#include <ATen/core/Tensor.h>

#include "engine/model/ops/dropout.h"

namespace sluice::engine {

struct AttentionOptions {
  std::int64_t heads = 1;
  Dropout dropout;
  bool deterministic = false;
};

struct Attended {
  at::Tensor output;  // [B, T, C]
  // For backward; undefined where the plain form was taken.
  at::Tensor logsumexp;
  at::Tensor philox_seed;
  at::Tensor philox_offset;
};

// qkv [B, T, 3 C]: each position's queries of all heads, then keys, then values.
Attended attention(const at::Tensor& qkv, const AttentionOptions& options);
// The gradient of qkv, whose sum over all positions is added to bias_gradient
// (fp32; may be undefined).
at::Tensor attention_backward(const at::Tensor& grad_output, const at::Tensor& qkv,
                              const Attended& attended, const AttentionOptions& options,
                              const at::Tensor& bias_gradient);

}  // namespace sluice::engine
