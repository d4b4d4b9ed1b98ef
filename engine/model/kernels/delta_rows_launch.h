// Passes over 16-bit rows around a gated delta rule, without LibTorch's headers: the causal
// convolution with its SiLU (ops/causal_conv.h), and the gated norm of heads (ops/gated_norm.h).
// Arithmetic is in fp32, and sums have an order that depends only on the shape.
//
// Rows are [batch * tokens, columns], with a stride in numbers where one is given.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "engine/model/kernels/cuda_launch.h"

namespace sluice::engine {

constexpr std::int64_t kConvTaps = 4;
constexpr std::int64_t kConvRun = 64;  // tokens of a thread; a grid bounds the number of runs

struct ConvShape {
  std::int64_t batch = 0;
  std::int64_t tokens = 0;
  std::int64_t channels = 0;  // even, like all strides
  CudaDtype dtype = CudaDtype::kBfloat16;
};

struct ConvLaunch {
  const void* input = nullptr;
  std::int64_t input_stride = 0;
  const void* weight = nullptr;             // [channels, kConvTaps], aligned to 16 bytes
  const std::int64_t* positions = nullptr;  // in documents; null: in the sequence
  void* output = nullptr;                   // [batch, tokens, channels]
};
cudaError_t launch_conv(const ConvLaunch& launch, const ConvShape& shape, cudaStream_t stream);

struct ConvBackwardLaunch {
  const void* input = nullptr;
  std::int64_t input_stride = 0;
  const void* weight = nullptr;
  const std::int64_t* positions = nullptr;
  const void* grad_output = nullptr;
  std::int64_t grad_output_stride = 0;
  void* grad_input = nullptr;  // none of the others
  std::int64_t grad_input_stride = 0;
  float* partials = nullptr;  // [conv_partial_rows(), channels, kConvTaps]: the weight's gradient
};
cudaError_t launch_conv_backward(const ConvBackwardLaunch& launch, const ConvShape& shape,
                                 cudaStream_t stream);
std::int64_t conv_partial_rows(const ConvShape& shape);

struct GatedNormShape {
  std::int64_t rows = 0;
  std::int64_t heads = 0;
  std::int64_t head_dim = 0;  // 8 times a power of two, at most 256; strides are multiples of 8
  float epsilon = 0;
  CudaDtype dtype = CudaDtype::kBfloat16;
};

struct GatedNormLaunch {
  const void* input = nullptr;  // [rows, heads * head_dim]
  const void* gate = nullptr;
  std::int64_t gate_stride = 0;
  const void* weight = nullptr;  // [head_dim]
  void* output = nullptr;        // [rows, heads * head_dim]
};
cudaError_t launch_gated_norm(const GatedNormLaunch& launch, const GatedNormShape& shape,
                              cudaStream_t stream);

struct GatedNormBackwardLaunch {
  const void* input = nullptr;  // [rows, heads * head_dim]
  const void* gate = nullptr;
  std::int64_t gate_stride = 0;
  const void* weight = nullptr;
  void* gradient = nullptr;  // [rows, heads * head_dim]: of the output; becomes that of the input
  void* grad_gate = nullptr;
  std::int64_t grad_gate_stride = 0;
  float* partials = nullptr;  // [gated_norm_partial_rows(), head_dim]: the weight's gradient
};
cudaError_t launch_gated_norm_backward(const GatedNormBackwardLaunch& launch,
                                       const GatedNormShape& shape, cudaStream_t stream);
std::int64_t gated_norm_partial_rows(const GatedNormShape& shape);

}  // namespace sluice::engine
