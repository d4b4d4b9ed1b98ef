// Rotary positions (Su et al., "RoFormer", 2021), as Hugging Face's Llama has them: the numbers i
// and i + head_dim / 2 of a head are a pair, turned by the position times the pair's frequency. For
// models with norms of queries and keys (Qwen3), an RMSNorm of each head comes before the turn.
//
// Angles are products in fp32 of a position and a frequency, as transformers', since models were
// trained with their rounding; sines, cosines and the turn are fp32 (float64 for float64).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "engine/model/documents.h"
#include "engine/model/ops/head_views.h"
#include "engine/model/rotary_frequencies.h"

namespace sluice::engine {

// Where the turned tokens are: in their documents, or from `first` on in each sequence.
struct RotaryPlace {
  std::int64_t first = 0;
  const Documents* documents = nullptr;
};

struct Rotary {
  const HeadShape& heads;
  const RotaryFrequencies& frequencies;
  RotaryPlace place;
  at::Tensor of_rows =
      {};  // fp32 [B * T, head_dim / 2]: where tokens have frequencies of their own
};

// Weights [head_dim] of one head, for all of them; or their gradients, fp32, added to; both
// undefined where they are not wanted.
struct HeadNormWeights {
  const at::Tensor& query;
  const at::Tensor& key;
};
struct HeadNorms {
  HeadNormWeights weights;
  double epsilon = 0;
};

// Turns the queries and keys of packed rows [B, T, heads.width()], in place.
void rotate(at::Tensor& packed, const Rotary& rotary);
// Turns their gradient back, in place.
void rotate_backward(at::Tensor& gradient, const Rotary& rotary);

// Queries and keys, normed and turned: [B, T, query_width() + key_width()].
at::Tensor norm_and_rotate(const at::Tensor& packed, const HeadNorms& norms, const Rotary& rotary);
// `gradient` [B, T, heads.width()] of what that made, and of the values, becomes that of `packed`.
void norm_and_rotate_backward(at::Tensor& gradient, const at::Tensor& packed,
                              const HeadNorms& norms, const HeadNormWeights& gradients,
                              const Rotary& rotary);

}  // namespace sluice::engine
