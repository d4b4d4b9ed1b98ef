// Dropout whose mask is a function of a seed and an element's position: nothing is stored, and
// backward draws it again. The same mask on CPU and CUDA.
//
// Two neighbours share one counter_bits(seed, position / 2): the even one has its low half, the odd
// one its high half. An element stays where its 32 bits are at least probability * 2^32; what stays
// is multiplied by 1 / (1 - probability) in fp32 (float64 for float64).
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

  bool active() const { return probability > 0; }
};

// With probability 0 unless the pass is training.
Dropout dropout_at(const PassContext& context, DropoutSite site, double probability);
// Of one of several at the same site, each with a mask of its own.
Dropout numbered(const Dropout& dropout, int number);

// Of a tensor whose first element has the given even position.
DropoutMask dropout_mask(const Dropout& dropout, std::uint64_t first_position = 0);

// In place on a contiguous tensor whose first element has the given even position. Does nothing
// when not active.
void drop_in_place(at::Tensor& tensor, const Dropout& dropout, std::uint64_t first_position = 0);

// `tensor` itself when not active, a new one otherwise.
at::Tensor with_dropout(const at::Tensor& tensor, const Dropout& dropout);

// `branch` becomes its own dropout plus `residual`.
void add_residual(at::Tensor& branch, const at::Tensor& residual, const Dropout& dropout);

}  // namespace sluice::engine
