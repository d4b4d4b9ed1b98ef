// The oracle: one element at a time, with the tree exactly as defined.
#include <array>

#include "offload/adamw/grad_stats_kernels.h"
#include "offload/adamw/half.h"

namespace sluice::offload {

double cast_and_square(const float* grad, GradType to, std::uint16_t* out) {
  float value = *grad;
  if (to == GradType::kBf16) value = float_from_bf16(*out = bf16_from_float(value));
  if (to == GradType::kFp16) value = float_from_fp16(*out = fp16_from_float(value));
  return double{value} * double{value};
}

double sum_tree(double* sums, int levels) {
  for (std::size_t nodes = std::size_t{1} << levels; nodes > 1; nodes /= 2)
    for (std::size_t i = 0; i < nodes / 2; ++i) sums[i] = sums[2 * i] + sums[2 * i + 1];
  return sums[0];
}

void leaf_sums_scalar(const float* grad, GradType to, std::uint16_t* out, std::size_t leaves,
                      double* sums) {
  std::array<double, kLeafElements> squares;
  for (std::size_t leaf = 0; leaf < leaves; ++leaf) {
    for (std::size_t i = 0; i < kLeafElements; ++i) {
      const std::size_t at = leaf * kLeafElements + i;
      squares[i] = cast_and_square(grad + at, to, to == GradType::kFp32 ? nullptr : out + at);
    }
    sums[leaf] = sum_tree(squares.data(), kLeafLevel);
  }
}

}  // namespace sluice::offload
