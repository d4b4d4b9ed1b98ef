// The model's own CUDA kernels, without LibTorch's headers: arguments are pointers, a dtype and a
// stream.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace sluice::engine {

enum class CudaDtype : std::uint8_t { kFloat, kBfloat16, kHalf };

// A dropout mask over a whole tensor, as in dropout.h. A threshold of 0 keeps all elements and does
// not scale them.
struct MaskLaunch {
  std::uint64_t seed = 0;
  std::uint32_t threshold = 0;
  float scale = 1;
};

struct DropoutLaunch {
  const void* from = nullptr;
  void* to = nullptr;
  std::int64_t elements = 0;
  CudaDtype dtype = CudaDtype::kFloat;
  std::uint64_t seed = 0;
  std::uint64_t first_pair = 0;
  std::uint32_t threshold = 0;
  float scale = 1;
};
cudaError_t launch_dropout(const DropoutLaunch& launch, cudaStream_t stream);

struct CrossEntropyLaunch {
  void* logits = nullptr;  // [rows, columns]
  const std::int64_t* targets = nullptr;
  float* losses = nullptr;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int64_t vocab = 0;
  std::int64_t ignored = -1;  // a target without loss and gradient
  CudaDtype dtype = CudaDtype::kFloat;
  float grad_scale = 1;
  bool gradient = true;
};
cudaError_t launch_cross_entropy(const CrossEntropyLaunch& launch, cudaStream_t stream);

}  // namespace sluice::engine
