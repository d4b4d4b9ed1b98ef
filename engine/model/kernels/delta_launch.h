// The scans of a gated delta rule over chunks of 64 tokens (ops/gated_delta_rule.cc). Each
// block has a state's columns in fp32 and goes through all chunks, where ATen's products would be
// launched chunk by chunk. Factors of products are rounded to TF32, which is finer than the bf16 or
// fp16 they come from; sums are in fp32 and have a fixed order. From Ampere on.
//
// Without LibTorch's headers. All tensors are [chunks, heads, 64, width], contiguous but for the
// stride of rows where one is given.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace sluice::engine {

constexpr std::int64_t kScanChunk = 64;
constexpr std::int64_t kScanColumns = 16;  // value_dim is a multiple of it

// Widths: value_dim, but for reads, asks and leaves, which have key_dim (64 or 128), and scores,
// which have 64.
struct DeltaScanLaunch {
  // Rows of solved_stride numbers.
  const float* new_values = nullptr;  // forward
  const float* reads = nullptr;
  std::int64_t solved_stride = 0;

  const float* asks = nullptr;
  const float* leaves = nullptr;
  const float* scores = nullptr;
  const float* through = nullptr;   // [chunks, heads]
  const float* gradient = nullptr;  // backward: that of the output
  float* state = nullptr;           // forward: [heads, key_dim, value_dim], before and after
  float* output = nullptr;          // forward

  // [chunks, heads, key_dim, value_dim]. Forward: states before each chunk, unless null. Backward:
  // gradients of those after it.
  float* states = nullptr;
  float* written = nullptr;  // values, unless null, or their gradients

  std::int64_t chunks = 0;
  std::int64_t heads = 0;
  std::int64_t key_dim = 0;
  std::int64_t value_dim = 0;
};
cudaError_t launch_delta_scan(const DeltaScanLaunch& launch, cudaStream_t stream);
cudaError_t launch_delta_scan_back(const DeltaScanLaunch& launch, cudaStream_t stream);

// The inverses of the identity plus `lower` [matrices, 64, 64], in fp32. `lower` has numbers below
// its diagonal alone.
cudaError_t launch_unit_inverse(const float* lower, float* inverse, std::int64_t matrices,
                                cudaStream_t stream);

}  // namespace sluice::engine
