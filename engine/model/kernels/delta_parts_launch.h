// The rows of a gated delta rule's chunks (ops/gated_delta_rule.cc): what the products between rows
// read, and what their gradients leave for queries, keys and values. Each is one pass over memory,
// where ATen's operators make about twenty.
//
// Without LibTorch's headers. Chunked rows are fp32 [chunks, batch, value heads, 64, width].
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "engine/model/kernels/cuda_launch.h"

namespace sluice::engine {

struct DeltaRowsShape {
  std::int64_t batch = 0;
  std::int64_t tokens = 0;
  std::int64_t chunks = 0;
  std::int64_t key_heads = 0;
  std::int64_t groups = 0;     // value heads of a key head
  std::int64_t key_dim = 0;    // 64 or 128
  std::int64_t value_dim = 0;  // even
  CudaDtype dtype = CudaDtype::kBfloat16;
};

// 16-bit rows [batch * tokens], of some heads; a stride of even numbers.
struct RuleRows {
  void* query = nullptr;
  void* key = nullptr;
  void* value = nullptr;
  std::int64_t stride = 0;
};

// Chunked numbers of each row, [chunks, batch, value heads, 64].
struct RowFactors {
  const float* rate = nullptr;
  const float* from_begin = nullptr;
  const float* to_end = nullptr;
};

// Rows beyond the last token become 0.
struct DeltaPrepareLaunch {
  RuleRows rows;  // read
  RowFactors factors;
  float* query = nullptr;   // chunked, of length 1, divided by sqrt(key_dim)
  float* key = nullptr;     // chunked, of length 1
  float* value = nullptr;   // chunked
  float* wanted = nullptr;  // chunked: rate value, and then rate from_begin key
  float* asks = nullptr;    // chunked: from_begin query
  float* leaves = nullptr;  // chunked: to_end key
};
cudaError_t launch_delta_prepare(const DeltaPrepareLaunch& launch, const DeltaRowsShape& shape,
                                 cudaStream_t stream);

struct DeltaFinishLaunch {
  RuleRows rows;  // read
  RowFactors factors;
  const float* query = nullptr;  // as prepared
  const float* key = nullptr;
  const float* value = nullptr;
  const float* wanted = nullptr;  // gradients, chunked
  const float* asks = nullptr;
  const float* leaves = nullptr;
  const float* of_query = nullptr;  // of scores, with respect to `query`
  const float* of_key = nullptr;    // of scores and similarities, with respect to `key`
  // Products with what they are gradients of, summed over each row.
  float* along_values = nullptr;
  float* along_keys = nullptr;
  float* along_asks = nullptr;
  float* along_leaves = nullptr;
  RuleRows gradients;  // written
};
cudaError_t launch_delta_finish(const DeltaFinishLaunch& launch, const DeltaRowsShape& shape,
                                cudaStream_t stream);

}  // namespace sluice::engine
