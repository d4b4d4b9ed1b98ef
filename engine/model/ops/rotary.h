// Rotary positions (Su et al., "RoFormer", 2021), as in Hugging Face's Llama. The numbers i and
// i + head_dim / 2 of a head are a pair, rotated by the position times the pair's frequency. With
// fewer frequencies, only so many pairs of numbers at the head's beginning are rotated. In
// models with norms of queries and keys (Qwen3), an RMSNorm of each head comes before the rotation.
//
// Angles are fp32 products of a position and a frequency, as in transformers, because models were
// trained with that rounding. Sines, cosines and the rotation are fp32 (float64 for float64).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "engine/model/documents.h"
#include "engine/model/ops/head_views.h"
#include "engine/model/rotary_frequencies.h"

namespace sluice::engine {

// The positions of the rotated tokens: in their documents, or from `first` on in each sequence.
struct RotaryStart {
  std::int64_t first = 0;
  const Documents* documents = nullptr;
};

struct Rotary {
  const HeadShape& heads;
  const RotaryFrequencies& frequencies;
  RotaryStart place;
  at::Tensor of_rows = {};  // fp32 [B * T, pairs]: per-token frequencies
};

// The weights [head_dim] that all heads share, in the dtype of the rows or in fp32 (rms_norm.h), or
// their gradients (fp32, added to). Both are undefined if not wanted.
struct HeadNormWeights {
  const at::Tensor& query;
  const at::Tensor& key;
};
struct HeadNorms {
  HeadNormWeights weights;
  double epsilon = 0;
};

// Rotates the queries and keys of packed rows [B, T, heads.width()], in place.
void rotate(at::Tensor& packed, const Rotary& rotary);
// Rotates their gradient back, in place.
void rotate_backward(at::Tensor& gradient, const Rotary& rotary);

// Queries and keys, normed and rotated: [B, T, query_width() + key_width()].
at::Tensor norm_and_rotate(const at::Tensor& packed, const HeadNorms& norms, const Rotary& rotary);
// Replaces `gradient` [B, T, heads.width()], of that output and of the values, by the gradient of
// `packed`.
void norm_and_rotate_backward(at::Tensor& gradient, const at::Tensor& packed,
                              const HeadNorms& norms, const HeadNormWeights& gradients,
                              const Rotary& rotary);

}  // namespace sluice::engine
