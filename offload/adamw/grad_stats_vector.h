// The leaf kernel over vectors of any width, for grad_stats_avx2.cc and grad_stats_avx512.cc;
// vec_avx2.h explains V and why everything is in an unnamed namespace. `Leaf::sum(values)` adds the
// squares of a leaf's floats, given as vectors, in the order of the tree.
#pragma once

#include <cstddef>
#include <cstdint>

#include "offload/adamw/adamw_arrays.h"
#include "offload/adamw/grad_stats_kernels.h"
#include "offload/adamw/prefetch.h"

namespace sluice::offload {
namespace {

template <class V, class Leaf, GradType kTo>
void run_leaf_sums(const float* grad, std::uint16_t* out, std::size_t leaves, double* sums) {
  constexpr std::size_t kVectors = kLeafElements / V::kLanes;
  for (std::size_t leaf = 0; leaf < leaves; ++leaf) {
    const std::size_t ahead = leaf * kLeafElements + kPrefetchElements;
    prefetch<4>(grad, ahead, kLeafElements);
    if constexpr (kTo != GradType::kFp32) prefetch<2>(out, ahead, kLeafElements);
    typename V::F values[kVectors];
    for (std::size_t i = 0; i < kVectors; ++i) {
      const std::size_t at = leaf * kLeafElements + i * V::kLanes;
      values[i] = V::load(grad + at);
      if constexpr (kTo == GradType::kBf16)
        values[i] = V::cast_bf16(out + at, V::canonical_nan(values[i]));
      if constexpr (kTo == GradType::kFp16)
        values[i] = V::cast_fp16(out + at, V::canonical_nan(values[i]));
    }
    sums[leaf] = Leaf::sum(values);
  }
}

template <class V, class Leaf>
void vector_leaf_sums(const float* grad, GradType to, std::uint16_t* out, std::size_t leaves,
                      double* sums) {
  switch (to) {
    case GradType::kFp32:
      return run_leaf_sums<V, Leaf, GradType::kFp32>(grad, out, leaves, sums);
    case GradType::kBf16:
      return run_leaf_sums<V, Leaf, GradType::kBf16>(grad, out, leaves, sums);
    case GradType::kFp16:
      return run_leaf_sums<V, Leaf, GradType::kFp16>(grad, out, leaves, sums);
  }
}

}  // namespace
}  // namespace sluice::offload
