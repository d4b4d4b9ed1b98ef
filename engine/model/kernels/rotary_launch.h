// Rotary positions of 16-bit rows on CUDA (engine/model/ops/rotary.h), with or without a norm of
// each head before the rotation. Arguments are pointers, a dtype and a stream. A row has the
// queries of all heads, then their keys, and more that is not read. Sums are in fp32, in an order
// that depends only on the shape.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "engine/model/kernels/cuda_launch.h"

namespace sluice::engine {

constexpr int kMostRotaryPairs = 128;

struct RotaryShape {
  std::int64_t rows = 0;
  std::int64_t heads = 0;     // of queries
  std::int64_t kv_heads = 0;  // of keys
  std::int64_t head_dim = 0;  // a multiple of 16; a power of two with a norm
  CudaDtype dtype = CudaDtype::kBfloat16;
};

struct RotaryTurns {
  float frequencies[kMostRotaryPairs] = {};
  float scale = 1;
  const std::int64_t* positions = nullptr;  // [rows]; null: first + row % tokens
  std::int64_t first = 0;
  std::int64_t tokens = 1;
  const float* of_rows = nullptr;  // [rows, head_dim / 2], instead of `frequencies`
};

// The weights of one head, [head_dim]; null: there is no norm.
struct RotaryNorms {
  const void* query = nullptr;
  const void* key = nullptr;
  float epsilon = 0;
};

struct RotaryLaunch {
  const void* from = nullptr;  // [rows, from_columns]
  void* to = nullptr;          // [rows, to_columns]; may be `from`
  std::int64_t from_columns = 0;
  std::int64_t to_columns = 0;
  RotaryShape shape;
  RotaryTurns turns;
  RotaryNorms norms;
};
cudaError_t launch_rotary(const RotaryLaunch& launch, cudaStream_t stream);

struct RotaryBackwardLaunch {
  void* gradient = nullptr;    // [rows, columns], in place
  const void* from = nullptr;  // forward's input, for norms; [rows, columns]
  std::int64_t columns = 0;
  RotaryShape shape;
  RotaryTurns turns;
  RotaryNorms norms;
  // For norms: [rotary_partial_rows(rows), 2, head_dim]: the queries' weight, the keys' weight.
  float* partials = nullptr;
};
cudaError_t launch_rotary_backward(const RotaryBackwardLaunch& launch, cudaStream_t stream);
std::int64_t rotary_partial_rows(std::int64_t rows);

}  // namespace sluice::engine
