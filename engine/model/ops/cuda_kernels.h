// What the model needs of CUDA beyond ATen, on the current stream. Without CUDA in the build each
// of these throws, naming what is missing.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace sluice::engine {

struct DropoutMask {
  std::uint64_t seed = 0;
  std::uint64_t first_pair = 0;
  std::uint32_t threshold = 0;
  double scale = 1;
};

// Both contiguous and of one dtype and length; may be the same tensor.
void cuda_dropout(const at::Tensor& from, at::Tensor& to, const DropoutMask& mask);

// A target that takes no part, as in torch's cross_entropy.
inline constexpr std::int64_t kIgnoredTarget = -100;

// Replaces each row of logits [rows, columns] by the gradient of grad_scale times its loss
// (columns from `vocab` on: 0) unless `gradient` is false, and writes its loss to losses (fp32
// [rows]): NaN for a target outside the vocabulary, 0 for kIgnoredTarget, whose gradient is 0.
struct CrossEntropyOptions {
  std::int64_t vocab = 0;
  double grad_scale = 1;
  bool gradient = true;
};
void cuda_cross_entropy(at::Tensor& logits, const at::Tensor& targets, at::Tensor& losses,
                        const CrossEntropyOptions& options);

// Of the device's compute capability: 8 from Ampere on, 9 from Hopper on.
int cuda_major(at::Device device);

}  // namespace sluice::engine
