// Dropout whose mask is a function of a seed and an element's position. No mask is stored; backward
// draws it again. The mask is the same on CPU and CUDA.
//
// Two neighbours share one counter_bits(seed, position / 2): the even one has its low half, the odd
// one its high half. An element is kept if its 32 bits are at least probability * 2^32. Kept
// elements are multiplied by 1 / (1 - probability) in fp32 (float64 for float64).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "engine/model/model_unit.h"
#include "engine/model/ops/cuda_kernels.h"

namespace sluice::engine {

enum class DropoutSite : std::uint8_t {
  kEmbedding,
  kAttention,
  kProjection,
  kFcProjection,
  kAdapter
};

struct Dropout {
  double probability = 0;  // 0: does nothing
  std::uint64_t seed = 0;
  // The even position of a tensor's first element: not 0 if it is a part of a larger one.
  std::uint64_t first_position = 0;

  bool active() const { return probability > 0; }
};

// Has probability 0 unless the pass is training.
Dropout dropout_at(const PassContext& context, DropoutSite site, double probability);
// One of several dropouts at the same site, each with its own mask.
Dropout numbered(const Dropout& dropout, int number);

// The mask of a tensor that begins at the given even position, from dropout.first_position on.
DropoutMask dropout_mask(const Dropout& dropout, std::uint64_t first_position = 0);

// In place on a contiguous tensor that begins at such a position. Does nothing if dropout is not
// active.
void drop_in_place(at::Tensor& tensor, const Dropout& dropout, std::uint64_t first_position = 0);

// Returns `tensor` itself if dropout is not active, else a new one.
at::Tensor with_dropout(const at::Tensor& tensor, const Dropout& dropout);

// Replaces `branch` by its own dropout plus `residual`.
void add_residual(at::Tensor& branch, const at::Tensor& residual, const Dropout& dropout);

}  // namespace sluice::engine
