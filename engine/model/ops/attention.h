// Causal self-attention of packed queries, keys and values.
//
// Uses ATen's fused kernels where possible. On the CPU that is without dropout, in fp32 if it
// multiplies 16-bit numbers slowly (products.h). On CUDA it is from Ampere on in 16-bit dtypes
// (cuda_attention.h), with the kernel's own dropout from the same seed.
// Otherwise it uses plain products and softmax in fp32, a bounded number of heads at a time, with
// the masks of dropout.h. The choice depends only on shapes and options.
//
// With a soft cap, as in Gemma 2, a scaled score becomes cap * tanh(score / cap), always by plain
// products.
//
// With sinks (Xiao et al., "Efficient Streaming Language Models with Attention Sinks", 2023, as in
// gpt-oss) each head's softmax has one more score, a parameter, whose probability is dropped.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "engine/model/documents.h"
#include "engine/model/ops/dropout.h"
#include "engine/model/ops/head_views.h"

namespace sluice::engine {

// The keys that a query attends to: its own position and earlier ones, within its document, and
// only the nearest if there is a window.
struct AttentionReach {
  // Keys visible to a query, including its own; 0: all. This is transformers' sliding_window, and
  // one more than FlashAttention's window_size_left.
  std::int64_t window = 0;
  const Documents* documents = nullptr;  // null: each sequence is one document

  // Whether the window or documents hide a key that the causal mask would leave, in a sequence of
  // `tokens`.
  bool is_short(std::int64_t tokens) const {
    return documents != nullptr || (window != 0 && window < tokens);
  }
};

// True where a key (the third dimension) is hidden from a query (the second): [B, T, T] with
// documents, else [1, T, T].
at::Tensor hidden_keys(const AttentionReach& reach, std::int64_t tokens, at::Device device);

// Causal attention by plain products and a softmax in fp32 (float64 for float64). It computes a
// bounded number of heads at a time, so that the probabilities are never in memory as a whole.
// Backward recomputes them. The arithmetic and masks are the same on CPU and CUDA.
struct PlainAttentionOptions {
  AttentionReach reach = {};
  Dropout dropout = {};
  std::optional<double> scale = {};  // of the scores; none: 1 / sqrt(head_dim)
  double soft_cap = 0;               // of the scaled scores; 0: none
  at::Tensor sinks = {};             // [heads of queries]; undefined: none
};

// Returns [B, T, width of the queries].
at::Tensor plain_attention(const HeadViews& heads, const PlainAttentionOptions& options);
// Writes the gradients of queries, keys and values. That of the sinks is added to sink_gradient
// (fp32, [heads]; may be undefined).
void plain_attention_backward(const at::Tensor& grad_heads, const HeadViews& heads,
                              const PlainAttentionOptions& options, const HeadViews& gradients,
                              const at::Tensor& sink_gradient = {});

struct AttentionOptions {
  HeadShape heads;
  AttentionReach reach;
  Dropout dropout;
  bool deterministic = false;
  std::optional<double> scale = {};  // of the scores; none: 1 / sqrt(head_dim)
  double soft_cap = 0;               // of the scaled scores; 0: none
  at::Tensor sinks = {};             // [heads.heads]; undefined: none
};

struct Attended {
  at::Tensor output;  // [B, T, width of the queries]
  // For backward; undefined after plain attention. Includes the sinks.
  at::Tensor logsumexp;
  at::Tensor philox_seed;
  at::Tensor philox_offset;
};

Attended attention(const HeadViews& heads, const AttentionOptions& options);

// Returns the packed gradients of queries, keys and values, in the order of HeadViews: [B, T,
// HeadShape::width()]. Their sums over all positions are added to bias_gradient, and the gradient
// of the sinks to sink_gradient (both fp32; may be undefined).
at::Tensor attention_backward(const at::Tensor& grad_output, const HeadViews& heads,
                              const Attended& attended, const AttentionOptions& options,
                              const at::Tensor& bias_gradient,
                              const at::Tensor& sink_gradient = {});

// Attention of the last positions of a sequence, which have queries, to the keys of all positions:
// [B, positions with queries, width of the queries]. Ignores dropout and documents.
at::Tensor attend_last(const HeadViews& heads, const AttentionOptions& options);

}  // namespace sluice::engine
